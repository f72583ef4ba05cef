#!/usr/bin/env bash
# Builds images for clusters that reach no registry, on a base made from the distribution's packages, and prints their
# sizes; import.sh brings them in: images.sh [IMAGE...] (default: all but the engine's, which holds torch). TAG: dev.
set -euo pipefail
. "$(dirname "$(realpath "$0")")/places.sh"
. "$here/storage.sh"
# buildah keeps what a build caches below TMPDIR by its path: let that be this machine's own package cache, so that
# gigabytes are fetched and kept once.
packages=$TMPDIR/buildah-cache/root/.cache/uv
if [ ! -L "$packages" ]; then
  rm -rf "$packages"
  mkdir -p "${UV_CACHE_DIR:-$HOME/.cache/uv}" "$(dirname "$packages")"
  ln -s "${UV_CACHE_DIR:-$HOME/.cache/uv}" "$packages"
fi
export BUILDER=buildah BUILDAH_ISOLATION=chroot ENGINE_PACKAGES=
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
nice -n 10 "$here/../../images/build.sh" "$@"
