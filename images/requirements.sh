#!/bin/sh
# Runs inside a build: installs into $VIRTUAL_ENV what the deployable of extra $1 needs, and no more than it needs.
set -eu
[ -n "${UV_TORCH_BACKEND:-}" ] || unset UV_TORCH_BACKEND
uv venv --quiet "$VIRTUAL_ENV"
uv pip install --quiet --constraint constraints.txt --requirement pyproject.toml --extra "$1"
site=$(echo "$VIRTUAL_ENV"/lib/python3.*/site-packages)
find "$site" -type d -name tests -prune -exec rm -rf {} +
if [ "$1" = operator ]; then
  # The client has each API and model twice; the operator uses the asyncio half, and the other half loads lazily.
  rm -rf "$site"/kubernetes/client/api "$site"/kubernetes/client/models
fi
