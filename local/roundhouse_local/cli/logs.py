"""`roundhouse logs`: the supervisor says where a container's log is, the file is read here."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from roundhouse_local.errors import UserError

LOOK_S = 0.2


def run_logs(options: argparse.Namespace, ask: Callable[..., Any]) -> int:
    def where() -> tuple[list[str], str]:
        answer = ask(verb="logs", name=options.replica, namespace=options.namespace, container=options.container)
        return answer["files"], answer["container"]

    files, container = where()
    if options.previous and len(files) < 2:
        raise UserError(f"container {container} of {options.replica} has not been restarted: there is no previous log")
    if not files:
        raise UserError(f"container {container} of {options.replica} has not been started yet")
    path = Path(files[-2] if options.previous else files[-1])
    position = _print_all(path, options.tail)
    if options.follow and not options.previous:
        for text in _follow(path, position, where):
            sys.stdout.write(text)
            sys.stdout.flush()
    return 0


def _print_all(path: Path, lines: int | None) -> int:
    data = path.read_bytes()
    text = data.decode(errors="replace")
    if lines is not None:
        text = "".join(text.splitlines(keepends=True)[-lines:] if lines else [])
    sys.stdout.write(text)
    sys.stdout.flush()
    return len(data)


def _follow(path: Path, position: int, where: Callable[[], tuple[list[str], str]]) -> Iterator[str]:
    """What is appended, also by the container's next lives; a log that was shortened is read from its beginning."""
    while True:
        time.sleep(LOOK_S)
        size = path.stat().st_size if path.exists() else 0
        if size < position:
            position = 0
        if size > position:
            with path.open("rb") as file:
                file.seek(position)
                data = file.read(size - position)
            position += len(data)
            yield data.decode(errors="replace")
            continue
        latest = Path(where()[0][-1])
        if latest != path:
            path, position = latest, 0
