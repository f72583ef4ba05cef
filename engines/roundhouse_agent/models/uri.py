"""Model URIs: ``hf://org/name[@revision][/file.gguf]``, ``file:///path``, ``wheel://PACKAGE[==version][/path]``."""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from roundhouse_agent.errors import BadModelUri

_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^\s@]+?))?(?:/(?P<path>[^@\s]+\.gguf))?")
_WHEEL = re.compile(
    r"(?P<package>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:==(?P<version>[\w.!+-]+))?(?:/(?P<path>[^\s]+))?"
)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository on the Hugging Face hub; ``path`` picks one GGUF file of it."""

    repo: str
    revision: str = "main"
    path: str = ""


@dataclass(frozen=True, slots=True)
class FolderModel:
    """A folder, or one GGUF file, that this machine can read."""

    path: str


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model inside a wheel of the configured package index; ``path`` is a file or folder in the wheel."""

    package: str
    version: str = ""
    path: str = ""

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}" if self.version else self.package


ModelUri = HubModel | FolderModel | WheelModel


def parse_uri(uri: str) -> ModelUri:
    """Raises `BadModelUri` with the form that was expected."""
    scheme, found, rest = uri.partition("://")
    if found and scheme == "hf":
        if match := _HUB.fullmatch(rest):
            return HubModel(match["repo"], match["revision"] or "main", match["path"] or "")
        raise BadModelUri(f"model {uri!r}: write hf://org/name or hf://org/name@revision")
    if found and scheme == "file":
        if rest.startswith("/"):
            return FolderModel(unquote(rest))
        raise BadModelUri(f"model {uri!r}: write file:///absolute/path, of a folder or a .gguf file")
    if found and scheme == "wheel":
        if (match := _WHEEL.fullmatch(rest)) and ".." not in (match["path"] or "").split("/"):
            return WheelModel(match["package"], match["version"] or "", match["path"] or "")
        raise BadModelUri(f"model {uri!r}: write wheel://PACKAGE, wheel://PACKAGE==version or wheel://PACKAGE/path")
    raise BadModelUri(f"model {uri!r}: write hf://org/name, file:///path or wheel://PACKAGE")
