# Sourced by images.sh and import.sh, after places.sh: where buildah keeps images, and which ones they are.
mkdir -p "$cache"/{containers,tmp}
export CONTAINERS_STORAGE_CONF=$cache/containers/storage.conf TMPDIR=$cache/tmp TAG=${TAG:-dev}
cat >"$CONTAINERS_STORAGE_CONF" <<CONF
[storage]
driver = "overlay"
graphroot = "$cache/containers"
runroot = "/run/containers/roundhouse"
CONF
ref() { echo "localhost/roundhouse-$1:$TAG"; }
