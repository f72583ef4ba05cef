"""Secrets and ConfigMaps that a pod refers to."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from roundhouse_operator.cluster import CONFIG_MAP, SECRET, Cluster, NotFound, Obj

from roundhouse_local.errors import MissingSource

SourceKind = Literal["secret", "configmap"]
Data = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Sources:
    """What was there when the container was about to start; names that are missing are left out."""

    namespace: str
    found: Mapping[tuple[SourceKind, str], Data]

    def data(self, kind: SourceKind, name: str, *, optional: bool = False) -> Data | None:
        """Raises `MissingSource` unless it is optional."""
        data = self.found.get((kind, name))
        if data is None and not optional:
            raise MissingSource(f'{kind} "{name}" not found')
        return data

    def value(self, kind: SourceKind, name: str, key: str, *, optional: bool = False) -> str | None:
        data = self.data(kind, name, optional=optional)
        if data is None or key not in data:
            if optional:
                return None
            label = "Secret" if kind == "secret" else "ConfigMap"
            raise MissingSource(f"couldn't find key {key} in {label} {self.namespace}/{name}")
        return data[key].decode(errors="surrogateescape")


async def load_sources(cluster: Cluster, pod: Obj) -> Sources:
    namespace = pod["metadata"]["namespace"]
    found: dict[tuple[SourceKind, str], Data] = {}
    for kind, name in set(_references(pod["spec"])):
        try:
            obj = await cluster.get(SECRET if kind == "secret" else CONFIG_MAP, namespace, name)
        except NotFound:
            continue
        found[kind, name] = _data(kind, obj)
    return Sources(namespace, found)


def _references(spec: Obj) -> Iterator[tuple[SourceKind, str]]:
    for volume in spec.get("volumes") or ():
        if "secret" in volume:
            yield "secret", volume["secret"]["secretName"]
        if "configMap" in volume:
            yield "configmap", volume["configMap"]["name"]
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        for entry in container.get("envFrom") or ():
            if "secretRef" in entry:
                yield "secret", entry["secretRef"]["name"]
            if "configMapRef" in entry:
                yield "configmap", entry["configMapRef"]["name"]
        for entry in container.get("env") or ():
            source = entry.get("valueFrom") or {}
            if "secretKeyRef" in source:
                yield "secret", source["secretKeyRef"]["name"]
            if "configMapKeyRef" in source:
                yield "configmap", source["configMapKeyRef"]["name"]


def _data(kind: SourceKind, obj: Obj) -> Data:
    """Raises `MissingSource` for data that is not base64."""
    name = obj["metadata"]["name"]
    plain = {} if kind == "secret" else {k: v.encode() for k, v in (obj.get("data") or {}).items()}
    coded = (obj.get("data") if kind == "secret" else obj.get("binaryData")) or {}
    try:
        return plain | {key: base64.b64decode(value, validate=True) for key, value in coded.items()}
    except (binascii.Error, ValueError, TypeError):
        raise MissingSource(f'{kind} "{name}" holds data that is not base64') from None
