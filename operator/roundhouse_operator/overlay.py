"""Strategic merge of ``spec.podTemplate`` over what the operator renders. Pure.

Objects are merged field by field, lists of named things by their key, as Kubernetes does it. Lists without a key
(tolerations) are added to, because replacing ours would keep pods off the nodes that they were made for; a node
affinity must hold beside that of ``resources.gpuType``. A null takes a field away.
"""

from collections.abc import Mapping
from typing import Any

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "claims": "name",
    "topologySpreadConstraints": "topologyKey",
}
_APPENDED = frozenset({"tolerations"})


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``overlay`` over it."""
    result = dict(base)
    for name, value in overlay.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            below = result.get(name)
            result[name] = merged(below if isinstance(below, Mapping) else {}, value)
        elif isinstance(value, list):
            result[name] = _merged_list(name, result.get(name), value)
        else:
            result[name] = value
    return result


def merged_pod(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Pod specs; our own required node affinity stays required."""
    result = merged(base, overlay)
    ours, theirs = _terms(base), _terms(overlay)
    if ours and theirs:
        both = [
            {**term, "matchExpressions": [*term.get("matchExpressions", []), *ours[0]["matchExpressions"]]}
            for term in theirs
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": both}}
        result = merged(result, {"affinity": {"nodeAffinity": required}})
    return result


def _terms(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: Any = spec
    for step in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, list) else []


def _merged_list(name: str, base: Any, overlay: list[Any]) -> list[Any]:
    below = base if isinstance(base, list) else []
    if name in _APPENDED:
        return [*below, *(item for item in overlay if item not in below)]
    key = _KEYS.get(name)
    if key is None or not all(isinstance(item, Mapping) and key in item for item in (*below, *overlay)):
        return overlay
    result = list(below)
    for item in overlay:
        at = next((i for i, there in enumerate(result) if there[key] == item[key]), None)
        if at is None:
            result.append(item)
        else:
            result[at] = merged(result[at], item)
    return result
