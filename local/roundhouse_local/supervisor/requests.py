"""What the CLI asks of a supervisor: one JSON object per connection each way, over the home's Unix socket.

A request has a ``verb`` and its arguments, an answer either ``error`` (with the exit ``code``) or the verb's result.
Shared by both sides; standard library only, so that short commands start fast.
"""

import json
import socket
from pathlib import Path
from typing import Any

from roundhouse_local.errors import StartError, UserError

LIMIT = 64 << 20
TIMEOUT_S = 60.0


def ask(control: Path, home: Path, **request: Any) -> Any:
    """Raises `StartError` when no supervisor answers, `UserError` with what it said when it refuses."""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(TIMEOUT_S)
            link.connect(str(control))
            link.sendall(json.dumps(request).encode() + b"\n")
            data = _read(link)
    except (FileNotFoundError, ConnectionRefusedError):
        raise StartError(f"no run is up in {home}; start one with `roundhouse up -f FILE`") from None
    except OSError as error:
        raise StartError(f"the run in {home} does not answer: {error}") from None
    if not data:
        raise StartError(f"the run in {home} has ended")
    answer = json.loads(data)
    if "error" in answer:
        raise UserError(answer["error"]) if answer.get("code") == 2 else StartError(answer["error"])
    return answer["result"]


def _read(link: socket.socket) -> bytes:
    parts = []
    while part := link.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)
