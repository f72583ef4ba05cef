"""Environment variables of a container, by the kubelet's rules. Pure."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from roundhouse_operator.cluster import Obj

from roundhouse_local.errors import MissingSource
from roundhouse_local.kubelet.sources import Sources

_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")

INHERITED = frozenset(
    {"HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "REQUESTS_CA_BUNDLE", "SHELL", "TMPDIR", "TZ", "USER"}
)
INHERITED_PREFIXES = ("CUDA_", "HF_HUB_", "HF_ENDPOINT", "NVIDIA_", "OMP_", "PIP_", "SSL_CERT_", "TORCH_", "TRITON_")
INHERITED_SUFFIXES = ("_PROXY", "_proxy")
"""What a process gets of the supervisor's own environment. An image would bring its own; tokens never pass."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known of a pod only once it is on a node."""

    pod_ip: str
    host_ip: str
    node: str


def base_environment(own: Mapping[str, str], scripts: str) -> dict[str, str]:
    """The part that every container gets: enough of ``own`` to run programs of this machine, scripts first in PATH."""
    kept = {
        name: value
        for name, value in own.items()
        if (name in INHERITED or name.startswith(INHERITED_PREFIXES) or name.endswith(INHERITED_SUFFIXES))
        and not name.endswith(("TOKEN", "PASSWORD"))
    }
    folders = [os.path.abspath(folder) for folder in own.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if folders:
        kept["PYTHONPATH"] = os.pathsep.join(folders)
    kept["PATH"] = os.pathsep.join([scripts, own.get("PATH", os.defpath)])
    kept["PYTHONUNBUFFERED"] = "1"
    return kept


def container_environment(container: Obj, pod: Obj, facts: PodFacts, sources: Sources) -> dict[str, str]:
    """``env`` and ``envFrom``; later entries may refer to earlier ones by ``$(NAME)``. Raises `MissingSource`."""
    env: dict[str, str] = {}
    for entry in container.get("envFrom") or ():
        env |= _env_from(entry, sources)
    for entry in container.get("env") or ():
        if "valueFrom" in entry:
            value = _value_from(entry["valueFrom"], pod, facts, sources)
        else:
            value = expand(str(entry.get("value") or ""), env)
        if value is not None:
            env[entry["name"]] = value
    return env


def expand(text: str, env: Mapping[str, str]) -> str:
    """``$(NAME)`` → its value, ``$$`` → ``$``; an unknown name stays as it is."""

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        return "$" if name is None else env.get(name, found.group())

    return _REFERENCE.sub(value, text)


def _env_from(entry: Obj, sources: Sources) -> dict[str, str]:
    prefix = entry.get("prefix", "")
    if "secretRef" in entry:
        reference, data = entry["secretRef"], None
        data = sources.data("secret", reference["name"], optional=reference.get("optional", False))
    else:
        reference = entry["configMapRef"]
        data = sources.data("configmap", reference["name"], optional=reference.get("optional", False))
    return {f"{prefix}{key}": value.decode(errors="surrogateescape") for key, value in (data or {}).items()}


def _value_from(source: Obj, pod: Obj, facts: PodFacts, sources: Sources) -> str | None:
    if reference := source.get("secretKeyRef"):
        optional = reference.get("optional", False)
        return sources.value("secret", reference["name"], reference["key"], optional=optional)
    if reference := source.get("configMapKeyRef"):
        optional = reference.get("optional", False)
        return sources.value("configmap", reference["name"], reference["key"], optional=optional)
    if reference := source.get("fieldRef"):
        return _field(reference["fieldPath"], pod, facts)
    raise MissingSource(f"valueFrom {', '.join(source)} is not supported in the local run")


def _field(path: str, pod: Obj, facts: PodFacts) -> str:
    metadata, spec = pod["metadata"], pod["spec"]
    if subscript := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(subscript.group(1)) or {}).get(subscript.group(2), ""))
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(metadata[path.partition(".")[2]])
        case "spec.nodeName":
            return facts.node
        case "spec.serviceAccountName":
            return str(spec.get("serviceAccountName", "default"))
        case "status.podIP" | "status.podIPs":
            return facts.pod_ip
        case "status.hostIP" | "status.hostIPs":
            return facts.host_ip
        case _:
            raise MissingSource(f'fieldRef "{path}" is not supported')
