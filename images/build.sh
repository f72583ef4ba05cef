#!/usr/bin/env bash
# Builds the images that are named (default: all), with docker, podman or buildah, and prints their sizes.
# Environment: BUILDER (default: the first of the three that works), REGISTRY (localhost), TAG (the version), BASE and
# ENGINE_BASE (see Dockerfile), BUILD_FLAGS (more flags of the builder).
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
die() { echo "images/build.sh: $*" >&2; exit 1; }
works() { command -v "$1" >/dev/null && "$1" info >/dev/null 2>&1; }
if [ -z "${BUILDER:-}" ]; then
  for b in docker podman buildah; do works $b && BUILDER=$b && break; done
fi
case ${BUILDER:-} in
  docker) build=(docker buildx build --load) ;;
  podman) build=(podman build) ;;
  buildah) build=(buildah build --layers --isolation "${BUILDAH_ISOLATION:-chroot}") ;;
  *) die "neither docker, podman nor buildah works here" ;;
esac
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
registry=${REGISTRY:-localhost} tag=${TAG:-$version}
flags=(--label "org.opencontainers.image.version=$version" --label org.opencontainers.image.licenses=Apache-2.0)
for arg in BASE ENGINE_BASE ENGINE_PACKAGES UV_TORCH_BACKEND; do
  [ -z "${!arg+x}" ] || flags+=(--build-arg "$arg=${!arg}")
done

[ $# -gt 0 ] || set -- operator gateway agent sim engine
for name; do
  ref=$registry/roundhouse-$name:$tag
  # shellcheck disable=SC2086
  "${build[@]}" --quiet ${BUILD_FLAGS:-} "${flags[@]}" --file images/Dockerfile --target "$name" --tag "$ref" . >/dev/null
  if [ "$BUILDER" = buildah ]; then size=$(buildah images --format '{{.Size}}' "$ref")
  else size=$("$BUILDER" image inspect --format '{{.Size}}' "$ref" | awk '{printf "%.0f MB", $1 / 1e6}'); fi
  printf '%-50s %s\n' "$ref" "$size"
done
