"""CustomResourceDefinitions of both resources, made from the models. ``crds/`` holds their YAML."""

from pathlib import Path
from typing import Any

import yaml

from roundhouse_operator.api.replica import EngineReplica, EngineReplicaSpec, EngineReplicaStatus
from roundhouse_operator.api.rules import ApiModel
from roundhouse_operator.api.schema import structural_schema
from roundhouse_operator.api.service import InferenceService, InferenceServiceSpec, InferenceServiceStatus
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, Kind, Obj

_READY = '.status.conditions[?(@.type=="Ready")]'
_HEADER = "# Generated from the pydantic models by `make crds`; do not edit.\n"


def _column(name: str, path: str, kind: str = "string", *, priority: int = 0, description: str = "") -> Obj:
    column: Obj = {"name": name, "type": kind, "jsonPath": path}
    if description:
        column["description"] = description
    if priority:
        column["priority"] = priority
    return column


_SERVICE_COLUMNS = [
    _column("Model", ".spec.model", description="What is served"),
    _column("Engine", ".status.engine", description="Engine kind in use"),
    _column("Ready", f"{_READY}.status", description="Whether requests are answered"),
    _column("Replicas", ".status.replicas", "integer", description="Replicas that exist and are not being stopped"),
    _column("URL", ".status.url", description="Base URL of the OpenAI-compatible endpoint"),
    _column("Age", ".metadata.creationTimestamp", "date"),
    _column("Reason", f"{_READY}.reason", description="Why it is ready or not"),
    _column("Ready Replicas", ".status.readyReplicas", "integer", priority=1),
    _column("Revision", ".status.revision", priority=1),
    _column("Message", f"{_READY}.message", priority=1),
]
_REPLICA_COLUMNS = [
    _column("Service", ".spec.service", description="InferenceService that owns it"),
    _column("Revision", ".spec.revision"),
    _column("Ready", f"{_READY}.status", description="Whether it answers"),
    _column("Address", ".status.address"),
    _column("Age", ".metadata.creationTimestamp", "date"),
    _column("Reason", f"{_READY}.reason", description="Why it is ready or not"),
    _column("Draining Until", ".spec.drain.deadline", priority=1),
    _column("Message", f"{_READY}.message", priority=1),
]


def crds() -> dict[str, Obj]:
    """CustomResourceDefinitions by file name."""
    service = _crd(
        INFERENCE_SERVICE, InferenceService, InferenceServiceSpec, InferenceServiceStatus, ["infsvc"], _SERVICE_COLUMNS
    )
    replica = _crd(ENGINE_REPLICA, EngineReplica, EngineReplicaSpec, EngineReplicaStatus, ["erep"], _REPLICA_COLUMNS)
    return {f"{crd['metadata']['name']}.yaml": crd for crd in (service, replica)}


def write_crds(path: Path) -> list[Path]:
    """Write one YAML file per resource into the folder ``path``; returns the files."""
    path.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in crd_texts().items():
        (path / name).write_text(text)
        written.append(path / name)
    return written


def crd_texts() -> dict[str, str]:
    """YAML by file name."""
    return {name: _HEADER + yaml.safe_dump(crd, sort_keys=False, width=110) for name, crd in crds().items()}


def _crd(
    kind: Kind,
    root: type[ApiModel],
    spec: type[ApiModel],
    status: type[ApiModel],
    short_names: list[str],
    columns: list[Obj],
) -> Obj:
    group, version = kind.api_version.split("/")
    subresources: Obj = {
        "status": {},
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
    }
    if "selector" in status.model_fields:
        subresources["scale"]["labelSelectorPath"] = ".status.selector"
    names: dict[str, Any] = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "shortNames": short_names,
        "categories": ["inference"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": names,
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": columns,
                    "subresources": subresources,
                    "schema": {"openAPIV3Schema": _root_schema(root, spec, status)},
                }
            ],
        },
    }


def _root_schema(root: type[ApiModel], spec: type[ApiModel], status: type[ApiModel]) -> Obj:
    """Spec and status in full; metadata is the API server's own, but rules about the name may stand at the root."""
    raw = structural_schema(root)
    texts = raw["properties"]
    schema: Obj = {
        "type": "object",
        "description": raw["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {**structural_schema(spec), "description": texts["spec"]["description"]},
            "status": {**structural_schema(status), "description": texts["status"]["description"]},
        },
    }
    if "x-kubernetes-validations" in raw:
        schema["x-kubernetes-validations"] = raw["x-kubernetes-validations"]
    return schema
