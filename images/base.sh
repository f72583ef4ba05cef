#!/usr/bin/env bash
# Makes the image localhost/roundhouse-base:bookworm, unless it is there: Debian with Python and nothing else, from the
# distribution's packages. The stand-in for python:3.11-slim-bookworm where no registry can be reached. Needs root.
set -euo pipefail
name=localhost/roundhouse-base:bookworm
if ! buildah inspect --type image "$name" >/dev/null 2>&1; then
  container=$(buildah from scratch)
  trap 'buildah rm "$container" >/dev/null' EXIT
  root=$(buildah mount "$container")
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$root" >"$root.log" 2>&1 ||
    { tail -n 20 "$root.log" >&2; exit 1; }
  rm "$root.log"
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/usr/share/{doc,info,locale,man}/*
  find "$root" -name __pycache__ -prune -exec rm -rf {} +
  buildah commit -q "$container" "$name" >/dev/null
fi
echo "$name"
