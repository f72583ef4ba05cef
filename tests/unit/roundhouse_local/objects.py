"""Objects and a clock for tests of the in-memory API."""

from typing import Any

from roundhouse_operator.cluster import Obj


class Clock:
    """Unix seconds that stand still until moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def obj(name: str, namespace: str = "default", **fields: Any) -> Obj:
    """An object; ``labels`` and ``owners`` (objects) go into metadata, the rest stands beside it."""
    metadata: Obj = {"name": name, "namespace": namespace}
    if labels := fields.pop("labels", None):
        metadata["labels"] = labels
    if owners := fields.pop("owners", None):
        metadata["ownerReferences"] = [
            {
                "apiVersion": o["apiVersion"],
                "kind": o["kind"],
                "name": o["metadata"]["name"],
                "uid": o["metadata"]["uid"],
            }
            for o in owners
        ]
    return {"metadata": metadata, **fields}


def pod(name: str, *, gpus: int = 0, **fields: Any) -> Obj:
    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    spec = {"containers": [{"name": "engine", "image": "x", "resources": {"limits": limits}}], **fields.pop("spec", {})}
    return obj(name, spec=spec, **fields)
