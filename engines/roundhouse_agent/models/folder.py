"""A model on this machine's disk: copied into the cache, so that an edit breaks no running engine."""

import os
from pathlib import Path
from shutil import copyfileobj
from typing import Final

from roundhouse_agent.errors import ModelNotFound
from roundhouse_agent.models.cache import ModelFolder
from roundhouse_agent.models.progress import ProgressReporter
from roundhouse_agent.models.uri import FolderModel

CHUNK_BYTES: Final = 4 << 20
COPIED: Final = (".safetensors", ".json", ".jinja", ".model", ".txt")


def find_folder(model: FolderModel) -> Path:
    """Raises `ModelNotFound` when the path is absent or cannot be read."""
    path = Path(model.path)
    if not path.exists():
        raise ModelNotFound(f"{path} does not exist in the fetch container: check the path in spec.model")
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise ModelNotFound(f"{path} cannot be read by this user: change its permissions")
    return path


def fingerprint(path: Path) -> str:
    """Changes when a file of the model does."""
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    return ";".join(f"{file.name}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in files)


def copy_folder(source: Path, target: Path, folder: ModelFolder, progress: ProgressReporter) -> None:
    """Copy the files that engines read."""
    files = [file for file in sorted(source.iterdir()) if file.is_file() and file.name.endswith(COPIED)]
    total, done = sum(file.stat().st_size for file in files), 0
    folder.need(total)
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        with file.open("rb") as reader, (target / file.name).open("wb") as writer:
            copyfileobj(reader, writer, CHUNK_BYTES)
        done += file.stat().st_size
        progress.report("fetch", done, total)
