"""Kubernetes Events for what people should hear of: conditions of a service that turned. Pure.

One Event per service, condition and reason: when the same happens again, the same Event gets a new time and message.
Events belong to their service and go with it.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

from roundhouse_operator.cluster import Obj
from roundhouse_operator.reasons import STUCK, Reason
from roundhouse_operator.timestamps import to_timestamp

_TOLD = ("Accepted", "Progressing", "Ready")
_WARNINGS = frozenset(
    {*STUCK, Reason.INVALID_SPEC, Reason.SERVED_NAME_CONFLICT, Reason.ROLLOUT_TIMED_OUT, Reason.WAITING_FOR_GPU}
)


def events(service: Obj, after: dict[str, Any], now: float) -> list[Obj]:
    """What became of the conditions between the service's own status and ``after``. Each reason is told once."""
    before = {item["type"]: (item["status"], item["reason"]) for item in _conditions(service.get("status") or {})}
    told: dict[str, Obj] = {}
    for item in _conditions(after):
        if item["type"] in _TOLD and before.get(item["type"]) != (item["status"], item["reason"]):
            told.setdefault(item["reason"], _event(service, item, now))
    return list(told.values())


def _conditions(status: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return status.get("conditions") or []


def _event(service: Obj, condition: dict[str, Any], now: float) -> Obj:
    meta = service["metadata"]
    identity = f"{meta['uid']}/{condition['type']}/{condition['reason']}"
    about = {"apiVersion": service["apiVersion"], "kind": service["kind"], "name": meta["name"], "uid": meta["uid"]}
    time = to_timestamp(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{meta['name']}.{hashlib.sha256(identity.encode()).hexdigest()[:16]}",
            "namespace": meta["namespace"],
            "ownerReferences": [about],
        },
        "involvedObject": {**about, "namespace": meta["namespace"]},
        "type": "Warning" if condition["reason"] in _WARNINGS else "Normal",
        "reason": condition["reason"],
        "message": condition["message"] or condition["reason"],
        "source": {"component": "roundhouse-operator"},
        "reportingComponent": "roundhouse-operator",
        "firstTimestamp": time,
        "lastTimestamp": time,
    }
