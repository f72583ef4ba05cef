"""The shared model cache: many replicas, one download.

A model is built in ``<cache>/.partial/<name>`` under an exclusive lock on ``<cache>/.locks/<name>`` and then renamed to
its final folder, marker ``.complete`` included, so a final folder is always whole: a crash leaves only a partial
folder, which the next fetch resumes. Whoever waits for the lock finds the finished folder and is done. The kernel
drops the lock with its holder, however that ends.
"""

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roundhouse_agent.errors import NoSpace

log = logging.getLogger(__name__)

MARKER = ".complete"


class ModelFolder:
    """One model's place in the cache: ``root`` is the cache, ``path`` the finished folder inside it."""

    def __init__(self, root: Path, path: Path) -> None:
        self.root = root
        self.path = path
        self.partial = root / ".partial" / path.name
        self._lock = root / ".locks" / f"{path.name}.lock"

    def complete(self, source: str) -> bool:
        """The finished folder is there, was made from ``source`` and still has every file at its size."""
        try:
            marker = json.loads((self.path / MARKER).read_bytes())
            return marker["source"] == source and all(
                (self.path / name).stat().st_size == size for name, size in marker["files"].items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold this model's lock; waits for another fetch of the same model."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("model_lock_waiting", extra={"model": self.path.name})
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def need(self, size: int) -> None:
        """Raises `NoSpace` unless ``size`` more bytes fit."""
        free = shutil.disk_usage(self.root).free
        if size > free:
            raise no_space(self.root, size, free)

    def publish(self, built: Path, source: str) -> None:
        """Make ``built`` (a folder inside `partial`) the finished folder."""
        files = [file for file in sorted(built.rglob("*")) if file.is_file()]
        for file in files:
            _sync(file)
        sizes = {str(file.relative_to(built)): file.stat().st_size for file in files}
        marker = built / MARKER
        marker.write_text(json.dumps({"v": 1, "source": source, "files": sizes}, indent=1))
        _sync(marker)
        _sync(built)
        stale = self.partial / ".stale"
        if self.path.exists():
            shutil.rmtree(stale, ignore_errors=True)
            self.path.rename(stale)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        built.rename(self.path)
        _sync(self.path.parent)
        shutil.rmtree(self.partial, ignore_errors=True)


@contextmanager
def full_disk_explained(root: Path) -> Iterator[None]:
    """Turn ENOSPC and EDQUOT of anything inside into `NoSpace`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise no_space(root, None, shutil.disk_usage(root).free) from error


def no_space(root: Path, needed: int | None, free: int) -> NoSpace:
    wants = f"needs {needed} bytes" if needed is not None else "ran out of space"
    return NoSpace(f"model cache {root} {wants} and has {free} bytes free: free some space or use a bigger modelCache")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
