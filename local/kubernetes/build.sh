#!/usr/bin/env bash
# Builds what a cluster consists of, unless this very source was built before, and prints the folder that holds it:
# devcluster (control plane, kubectl, kubelet, kube-proxy, fake GPUs), containerd with its shim and ctr, four CNI
# plugins, and the archives of the pause and CoreDNS images. Needs Go 1.26, the module proxy and buildah, once.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")"
containerd=v2.4.2 plugins=v1.10.0
cache=${RH_CACHE:-$HOME/.cache/roundhouse}/kubernetes
hash=$(find build.sh devcluster coredns -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
out=$cache/$hash
[ ! -d "$out" ] || { echo "$out"; exit; }

mkdir -p "$cache"
exec 9>"$out.lock"
flock 9
[ ! -d "$out" ] || { echo "$out"; exit; }
tmp=$out.tmp
rm -rf "$tmp"
mkdir -p "$tmp/images"
exec 3>&1 1>&2
export CGO_ENABLED=0 GOBIN=$tmp GOTOOLCHAIN=local
go() { nice -n 19 env go "$@"; }
build() { go build -trimpath -buildvcs=false "$@"; }

echo "building Kubernetes into $out (about 15 CPU-minutes the first time)"
version=$(cd devcluster && go list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${version#v}"
pkg=k8s.io/component-base/version
(
  cd devcluster
  build -ldflags "-s -w -X $pkg.gitVersion=$version -X $pkg.gitMajor=$major -X $pkg.gitMinor=$minor" -o "$tmp/devcluster" .
  build -ldflags "-s -w" -o "$tmp/pause" ./pause
)
ln -s devcluster "$tmp/kubectl"
(cd coredns && build -ldflags "-s -w" -o "$tmp/coredns" .)
pkg=github.com/containerd/containerd/v2
go install -trimpath -tags "no_btrfs no_zfs no_devmapper no_aufs" -ldflags "-s -w -X $pkg/version.Version=$containerd" \
  $pkg/cmd/{containerd,containerd-shim-runc-v2,ctr}@$containerd
pkg=github.com/containernetworking/plugins/plugins
go install -trimpath -ldflags "-s -w" $pkg/{main/ptp,main/loopback,ipam/host-local,meta/portmap}@$plugins

# image NAME UID: an image of one static binary
image() {
  local c
  c=$(buildah from scratch)
  buildah copy -q "$c" "$tmp/$1" "/$1"
  buildah config --user "$2" --entrypoint "[\"/$1\"]" "$c"
  buildah commit -q --rm "$c" "docker-archive:$tmp/images/$1.tar:localhost/$1:1"
}
image pause 65535:65535
image coredns 65532:65532
rm "$tmp/pause" "$tmp/coredns"
mv "$tmp" "$out"
echo "$out" >&3
