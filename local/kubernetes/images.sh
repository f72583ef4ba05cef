#!/usr/bin/env bash
# Builds images for clusters that reach no registry, on a base made from the distribution's packages, and prints their
# archives' paths for import.sh: images.sh [IMAGE...] (default: all but the engine's, which holds torch). TAG: dev.
set -euo pipefail
. "$(dirname "$(realpath "$0")")/places.sh"
mkdir -p "$cache"/{images,containers,tmp}
cat >"$cache/containers/storage.conf" <<CONF
[storage]
driver = "overlay"
graphroot = "$cache/containers"
runroot = "/run/containers/roundhouse"
CONF
export CONTAINERS_STORAGE_CONF=$cache/containers/storage.conf TMPDIR=$cache/tmp # TMPDIR: the builds' package cache too
export BUILDER=buildah BUILDAH_ISOLATION=chroot TAG=${TAG:-dev} ARCHIVES=$cache/images ENGINE_PACKAGES=
# The builds fetch packages as this machine does: by its network and with the certificates that it trusts.
export BUILD_FLAGS="--network host --volume /etc/ssl/certs:/etc/ssl/certs:ro"
exec 9>"$cache/containers/lock"
flock 9
# Layers of earlier builds are what makes the next one quick, until they are too many.
if [ "$(du -sm "$cache/containers" | cut -f1)" -gt 20000 ]; then
  buildah rm --all >/dev/null
  buildah rmi --prune >/dev/null
fi
BASE=$("$here/../../images/base.sh")
export BASE
[ $# -gt 0 ] || set -- operator gateway agent sim valkey
nice -n 10 "$here/../../images/build.sh" "$@" >&2
printf "$ARCHIVES/%s.tar\n" "$@"
