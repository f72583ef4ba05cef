"""`roundhouse keys create`: makes an API key, tells it once, and keeps only its hash."""

import argparse
import base64
import re
import secrets
import sys
from pathlib import Path
from typing import Any

import yaml
from roundhouse_gateway.api_keys import hash_line

from roundhouse_local.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def run_keys(options: argparse.Namespace) -> int:
    """Raises `UserError`. With ``--dir`` the hash goes into a file there, else a Secret goes to standard output."""
    name: str = options.name
    if not _NAME.fullmatch(name):
        raise UserError(f"key name {name!r}: use letters, digits, '.', '_' and '-', and begin with none of '.' and '-'")
    key = "rh-" + secrets.token_urlsafe(32)
    if options.dir is not None:
        _keep(options.dir, name, hash_line(key.encode()))
        print(key)
    else:
        if sys.stdout.isatty():
            print("# This Secret is for kubectl apply --server-side --filename -")
        print(yaml.safe_dump(_secret(options, hash_line(key.encode())), sort_keys=False), end="")
        print(f"The key of {name}, told only now: {key}", file=sys.stderr)
    return 0


def _keep(folder: Path, name: str, line: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("x", encoding="ascii") as file:
            file.write(line + "\n")
    except FileExistsError:
        raise UserError(f"{folder / name} exists: remove it to take that key away, or choose another name") from None
    except OSError as error:
        raise UserError(f"--dir {folder}: {error.strerror}") from None


def _secret(options: argparse.Namespace, line: str) -> dict[str, Any]:
    """One field of the Secret; server-side apply adds it to those of other clients."""
    metadata: dict[str, Any] = {"name": options.secret}
    if options.namespace:
        metadata["namespace"] = options.namespace
    data = {options.name: base64.b64encode(line.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
