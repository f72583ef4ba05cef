#!/usr/bin/env bash
# Imports images that images.sh built into every node: import.sh IMAGE... One that a node has already is skipped.
set -euo pipefail
. "$(dirname "$(realpath "$0")")/places.sh"
. "$here/storage.sh"
for node in "$data"/node-*; do
  for name; do
    ref=$(ref "$name") mark=$node/imported-$name
    version="$ref $(buildah inspect --type image --format '{{.FromImageID}}' "$ref")"
    [ "$(cat "$mark" 2>/dev/null)" = "$version" ] && continue
    # One by one: imports at the same time lock each other out.
    buildah push -q "$ref" "docker-archive:/dev/stdout:$ref" |
      NODE=${node##*-} "$here/enter.sh" ctr -n k8s.io images import --local - 2>&1 >/dev/null | sed '/DEPRECATION/d' >&2
    echo "$version" >"$mark"
  done
done
