"""Container images stand for programs of this machine.

An image is known by the last part of its repository, whatever registry, tag or digest it has: ``roundhouse-engine``
runs ``python -m roundhouse_torch``. The same programs are also scripts in a folder that comes first in every
container's PATH, for commands that name them. An engine with dependencies of its own has a virtual environment of its
own, below ``$RH_CACHE/peers``.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from roundhouse_local.errors import ImageError


@dataclass(frozen=True, slots=True)
class Image:
    """``argv`` runs when a container has no command. ``needs_module`` or ``needs_program`` must be on this machine.

    ``venv``: a virtual environment that its programs come from; ``needs_module`` must be in there.
    """

    argv: tuple[str, ...]
    needs_module: str = ""
    needs_program: str = ""
    remedy: str = ""
    venv: Path | None = None

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with this image's programs first in PATH, and without our packages where it has its own."""
        if self.venv is None:
            return dict(base)
        kept = {name: value for name, value in base.items() if name != "PYTHONPATH"}
        kept["PATH"] = os.pathsep.join([str(self.venv / "bin"), base.get("PATH", os.defpath)])
        return kept

    def missing(self) -> str:
        """What it needs and is not here."""
        if self.needs_module and not self._has_module():
            return f"Python module {self.needs_module}"
        if self.needs_program and shutil.which(self.needs_program) is None:
            return f"program {self.needs_program}"
        return ""

    def _has_module(self) -> bool:
        if self.venv is None:
            return find_spec(self.needs_module) is not None
        return any(self.venv.glob(f"lib/python3*/site-packages/{self.needs_module}/__init__.py"))


def peers_folder() -> Path:
    """Where other engines' virtual environments are."""
    return Path(os.environ.get("RH_CACHE") or Path.home() / ".cache" / "roundhouse") / "peers"


def python_image(package: str, needs: str = "", extra: str = "") -> Image:
    """A package of this distribution, run by the interpreter that runs us."""
    argv = (sys.executable, "-m", package)
    return Image(
        argv, needs_module=needs or package, remedy=f"pip install 'roundhouse-serving[{extra}]'" if extra else ""
    )


ROUNDHOUSE_IMAGES: Mapping[str, Image] = {
    "roundhouse-agent": python_image("roundhouse_agent", extra="agent"),
    "roundhouse-engine": python_image("roundhouse_torch", needs="torch", extra="torch"),
    "roundhouse-sim": python_image("roundhouse_sim", extra="sim"),
    "vllm-openai": Image(
        ("python3", "-m", "vllm.entrypoints.openai.api_server"),
        needs_module="vllm",
        remedy="make peers-vllm",
        venv=peers_folder() / "vllm",
    ),
}


def repository(reference: str) -> str:
    """``registry:5000/org/name:tag@sha256:…`` → ``name``."""
    path = reference.partition("@")[0]
    return re.sub(r":[^/]*$", "", path).rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ImageTable:
    images: Mapping[str, Image]

    def resolve(self, reference: str) -> Image:
        """Raises `ImageError` for an image that stands for nothing here, or whose program is not installed."""
        name = repository(reference)
        image = self.images.get(name)
        if image is None:
            known = ", ".join(sorted(self.images))
            raise ImageError(f'image "{reference}" stands for no program in the local run; known are {known}')
        if missing := image.missing():
            raise ImageError(f'image "{reference}" needs the {missing}, which is not installed: {image.remedy}')
        return image

    def write_scripts(self, folder: Path) -> None:
        """A script of its own name for every image that does not run a program of the same name anyway."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, image in self.images.items():
            script = folder / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join(image.argv)} "$@"\n')
            script.chmod(0o755)
