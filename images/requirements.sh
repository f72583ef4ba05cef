#!/bin/sh
# Runs inside a build: installs into $VIRTUAL_ENV what the deployable of extra $1 needs, and no more than it needs.
set -eu
[ -n "${UV_TORCH_BACKEND:-}" ] || unset UV_TORCH_BACKEND
uv venv --quiet "$VIRTUAL_ENV"
uv pip install --quiet --constraint constraints.txt --requirement pyproject.toml --extra "$1"
site=$(echo "$VIRTUAL_ENV"/lib/python3.*/site-packages)
[ "$1" != torch ] || exit 0 # Triton compiles against headers of its own
find "$site" -type d \( -name tests -o -path '*/numpy/f2py' -o -path '*/numpy/distutils' \) -prune -exec rm -rf {} +
find "$site" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.h' -o -name '*.a' \) -delete
if [ "$1" = operator ]; then
  # The client has each API and model twice; the operator uses the asyncio half, and the other half loads lazily.
  rm -rf "$site"/kubernetes/client/api
  find "$site"/kubernetes/client/models -name 'v[0-9]*.py*' -delete
fi
