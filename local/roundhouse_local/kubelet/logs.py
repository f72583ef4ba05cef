"""Where containers write, and what is read back from there."""

import shutil
from pathlib import Path

TAIL_BYTES, TAIL_LINES = 2048, 80
MESSAGE_BYTES = 4096


def log_file(folder: Path, namespace: str, pod: str, container: str, restart: int) -> Path:
    """``<namespace>_<pod>/<container>/<restart>.log``; its folder is made."""
    path = folder / f"{namespace}_{pod}" / container / f"{restart}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def tail(path: Path, size: int = TAIL_BYTES, lines: int = TAIL_LINES) -> str:
    """The end of a file, whole lines where it can be; empty when it is not there."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - size))
            data = file.read()
    except OSError:
        return ""
    return "".join(data.decode(errors="replace").splitlines(keepends=True)[-lines:])


def termination_message(written: Path, log: Path, *, policy: str, failed: bool) -> str:
    """What the container wrote as its last words, or the end of its log when it failed and the policy says so."""
    try:
        message = written.read_bytes()[:MESSAGE_BYTES].decode(errors="replace")
    except OSError:
        message = ""
    if not message and failed and policy == "FallbackToLogsOnError":
        return tail(log)
    return message


def shorten(path: Path, limit: int) -> bool:
    """Move what a log holds aside once it is over ``limit`` bytes; its writer appends and goes on at the beginning."""
    try:
        if path.stat().st_size <= limit:
            return False
        shutil.copyfile(path, path.with_suffix(".log.1"))
        with path.open("r+b") as file:
            file.truncate()
    except OSError:
        return False
    return True
