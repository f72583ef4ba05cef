"""The folder of one local run, and who may use it.

A lock that dies with its holder says whether a run is up; what the last run left is cleared when the next one starts.
Unix sockets lie below the folder and their paths end at 107 bytes, so a long folder is used through a short link.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from roundhouse_local.errors import StartError

LONGEST = 40
"""Bytes of a home below which pods can have their sockets: 107 − ``/pods/<uid>/v/run/kv-replay.sock`` and some room."""
MIN_FREE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Home:
    """``root`` is short; ``real`` is what users know."""

    root: Path
    real: Path

    @property
    def control(self) -> Path:
        return self.root / "control.sock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"


def control_socket(home: Path) -> Path:
    """Where the CLI finds the supervisor of ``home``, with a path short enough to connect to."""
    socket = home / "control.sock"
    if len(os.fsencode(socket)) <= 107:
        return socket
    try:
        return Path(os.path.relpath(socket))
    except ValueError:
        return socket


@contextmanager
def locked_home(path: Path, free_bytes: Callable[[Path], int] | None = None) -> Iterator[Home]:
    """Take ``path`` for one run. Raises `StartError` when another run has it or it cannot be written."""
    free_bytes = free_bytes or (lambda folder: shutil.disk_usage(folder).free)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"cannot use {path}: {error.strerror}; choose another folder with --home") from None
    try:
        _lock(path, lock)
        free = free_bytes(path)
        if free < MIN_FREE_BYTES:
            raise StartError(
                f"disk full: {free >> 20} MiB left for {path}; free some space or choose another folder with --home"
            )
        _clear(path)
        with _short(path) as root:
            yield Home(root, path)
    finally:
        os.close(lock)


def _lock(path: Path, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pid = os.read(lock, 32).decode(errors="replace").strip()
        raise StartError(
            f"another run is up in {path} (process {pid}); stop it with Ctrl-C, or start a second one with "
            "--home FOLDER and --port PORT"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _clear(path: Path) -> None:
    """Logs of the last run are kept beside the new ones; everything else it left goes."""
    try:
        shutil.rmtree(path / "logs.old", ignore_errors=True)
        if (path / "logs").exists():
            (path / "logs").rename(path / "logs.old")
        shutil.rmtree(path / "pods", ignore_errors=True)
        _remove_short(path)
        (path / "control.sock").unlink(missing_ok=True)
        (path / "logs").mkdir(mode=0o700)
        (path / "probe").write_bytes(bytes(1 << 20))
        (path / "probe").unlink()
    except OSError as error:
        raise StartError(f"cannot write to {path}: {error.strerror}; choose another folder with --home") from None


@contextmanager
def _short(path: Path) -> Iterator[Path]:
    if len(os.fsencode(path)) <= LONGEST:
        yield path
        return
    folder = Path(tempfile.mkdtemp(prefix="rh-", dir="/tmp"))
    (path / "short").symlink_to(folder)
    try:
        link = folder / "h"
        link.symlink_to(path)
        yield link
    finally:
        _remove_short(path)


def _remove_short(path: Path) -> None:
    """Also that of a run that was killed: the home remembers where its short link is."""
    short = path / "short"
    if short.is_symlink():
        shutil.rmtree(short.readlink(), ignore_errors=True)
        short.unlink()
