"""How an object goes: at once, after a pod's grace, or when its finalizers are gone. Pure."""

from roundhouse_operator.cluster import POD, Kind, Obj

from roundhouse_local.api.metadata import Stamps
from roundhouse_local.api.tree import clone

DEFAULT_GRACE_S = 30


def terminating(kind: Kind, obj: Obj, grace_seconds: int | None, stamps: Stamps) -> Obj | None:
    """The object after a delete call: None when it is gone at once, unchanged when it is terminating as asked.

    A pod that runs somewhere stays until its kubelet deletes it with grace 0. A later call can only shorten the grace.
    """
    grace = _pod_grace(obj, grace_seconds) if kind == POD else 0
    if grace == 0 and not obj["metadata"].get("finalizers"):
        return None
    metadata = obj["metadata"]
    if "deletionTimestamp" in metadata and grace >= metadata.get("deletionGracePeriodSeconds", 0):
        return obj
    new: Obj = clone(obj)
    new["metadata"] |= {
        "deletionTimestamp": stamps.time(grace),
        "deletionGracePeriodSeconds": grace,
        "generation": metadata["generation"] + 1,
    }
    return new


def doomed(obj: Obj) -> bool:
    """A terminating object other than a pod lives only as long as it has finalizers."""
    metadata = obj["metadata"]
    waits_for_kubelet = metadata.get("deletionGracePeriodSeconds", 0) > 0
    return "deletionTimestamp" in metadata and not metadata.get("finalizers") and not waits_for_kubelet


def _pod_grace(obj: Obj, asked: int | None) -> int:
    spec = obj.get("spec") or {}
    if not spec.get("nodeName") or obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    grace: int = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S) if asked is None else asked
    return max(0, grace)
