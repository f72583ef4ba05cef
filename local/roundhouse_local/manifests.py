"""YAML files → objects that the local run serves. Every complaint names the file and the place in it."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import yaml
from roundhouse_operator.cluster import CONFIG_MAP, INFERENCE_SERVICE, SECRET, Invalid, Kind, Obj

from roundhouse_local.api.tree import clone
from roundhouse_local.errors import UserError

APPLIED_KINDS = (INFERENCE_SERVICE, SECRET, CONFIG_MAP)
"""What users may write. Everything else is made by the operator."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object and where it was written."""

    source: str
    kind: Kind
    obj: Obj

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.obj["metadata"]["namespace"])


class _Loader(yaml.SafeLoader):
    """As Kubernetes reads YAML: a date is a string, and a key that stands twice is an error."""


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f'key "{key.value}" stands twice', key.start_mark)
        seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
    loader.flatten_mapping(node)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_manifests(paths: Iterable[str], namespace: str = "default", stdin: TextIO = sys.stdin) -> list[Manifest]:
    """Objects of all files; a folder stands for its ``.yaml`` files, ``-`` for standard input. Raises `UserError`."""
    found: dict[tuple[Kind, str, str], Manifest] = {}
    for path in paths:
        for source, text in _texts(path, stdin):
            for manifest in _objects(source, text, namespace):
                place = (manifest.kind, manifest.namespace, manifest.name)
                if place in found:
                    what, other = f'{manifest.kind.kind} "{manifest.name}"', found[place].source
                    raise UserError(f"{manifest.source}: {what} stands in {other} too; rename or remove one of them")
                found[place] = manifest
    return list(found.values())


def _texts(path: str, stdin: TextIO) -> Iterator[tuple[str, str | bytes]]:
    if path == "-":
        yield "standard input", stdin.read()
        return
    files = sorted(p for p in Path(path).glob("*.y*ml")) if Path(path).is_dir() else [Path(path)]
    if not files:
        raise UserError(f"{path}: the folder holds no .yaml file")
    for file in files:
        try:
            yield str(file), file.read_bytes()
        except FileNotFoundError:
            raise UserError(f"{file}: no such file; give the path of a YAML file with an InferenceService") from None
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}") from None


def _objects(source: str, text: str | bytes, namespace: str) -> Iterator[Manifest]:
    try:
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{source}{where}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise UserError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{source}: nested too deeply") from None
    if not documents:
        raise UserError(f"{source}: holds no object")
    for place, document in enumerate(documents, 1):
        where = f"{source}, document {place}" if len(documents) > 1 else source
        try:
            document = clone(document)
        except Invalid as error:
            raise UserError(f"{where}: {error}") from None
        yield _manifest(where, document, namespace)


def _manifest(where: str, document: Any, namespace: str) -> Manifest:
    if not isinstance(document, dict):
        raise UserError(f"{where}: a {type(document).__name__}, not an object with apiVersion, kind and metadata")
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str):
            raise UserError(f"{where}: {field} is missing; an InferenceService begins with {_BEGINNING}")
    kind = next((kind for kind in APPLIED_KINDS if kind.kind == document["kind"]), None)
    if kind is None:
        known = ", ".join(kind.kind for kind in APPLIED_KINDS)
        raise UserError(f"{where}: kind {document['kind']} is not served by the local run; these are: {known}")
    if document["apiVersion"] != kind.api_version:
        raise UserError(f"{where}: apiVersion {document['apiVersion']} of a {kind.kind} must be {kind.api_version}")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise UserError(f"{where}: metadata.name is missing; give the {kind.kind} a name")
    metadata.setdefault("namespace", namespace)
    return Manifest(where, kind, document)


_BEGINNING = f"apiVersion: {INFERENCE_SERVICE.api_version} and kind: {INFERENCE_SERVICE.kind}"
