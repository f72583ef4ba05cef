"""Kubernetes Events for what people should hear of: conditions of a service that turned, and scaling decisions. Pure.

One Event per service, subject and reason: when the same happens again, the same Event gets a new time and message, and
counts one more. Events belong to their service and go with it.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

from roundhouse_operator.cluster import Obj
from roundhouse_operator.reasons import STUCK, Reason
from roundhouse_operator.timestamps import to_timestamp

_TOLD = ("Accepted", "Progressing", "Ready")
_TOLD_ALWAYS = frozenset({Reason.AT_MAXIMUM, Reason.LOAD_UNKNOWN, Reason.AGENT_OUTDATED})
_WARNINGS = frozenset(
    {
        *STUCK,
        Reason.INVALID_SPEC,
        Reason.SERVED_NAME_CONFLICT,
        Reason.INSTALLATION_CONFLICT,
        Reason.FIELD_CONFLICT,
        Reason.ROLLOUT_TIMED_OUT,
        Reason.WAITING_FOR_GPU,
        Reason.VOLUME_PENDING,
        Reason.AT_MAXIMUM,
        Reason.AGENT_OUTDATED,
    }
)


def events(service: Obj, after: dict[str, Any], now: float) -> list[Obj]:
    """What became of the conditions between the service's own status and ``after``. Each reason is told once."""
    before = {item["type"]: (item["status"], item["reason"]) for item in _conditions(service.get("status") or {})}
    before.setdefault("Accepted", ("True", Reason.ACCEPTED))  # as one may expect
    told: dict[str, Obj] = {}
    for item in _conditions(after):
        told_of = item["type"] in _TOLD or item["reason"] in _TOLD_ALWAYS
        if told_of and before.get(item["type"]) != (item["status"], item["reason"]):
            told.setdefault(item["reason"], _event(service, item["type"], item["reason"], item["message"], now))
    if Reason.SERVING in told:
        told.pop(Reason.COMPLETE, None)  # it says the same
    return [*told.values(), *_decisions(service, after, now)]


def counted(event: Obj, before: Obj) -> Obj:
    """``before``: the Event of this name that is there already."""
    again = {"count": int(before.get("count") or 1) + 1}
    return {**event, **again, "firstTimestamp": before.get("firstTimestamp") or event["firstTimestamp"]}


def _decisions(service: Obj, after: dict[str, Any], now: float) -> Iterable[Obj]:
    """The newest one, if it is new."""
    known, found = (
        (status.get("scaling") or {}).get("decisions") or [] for status in (service.get("status") or {}, after)
    )
    if not found or found[:1] == known[:1]:
        return
    last = found[0]
    reason = "ScaledUp" if last["replicas"] > last["previous"] else "ScaledDown"
    text = f"from {last['previous']} to {last['replicas']} replicas: {last['message']}"
    yield _event(service, "Scaling", reason, text, now)


def _conditions(status: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return status.get("conditions") or []


def _event(service: Obj, subject: str, reason: str, message: str, now: float) -> Obj:
    meta = service["metadata"]
    identity = f"{meta['uid']}/{subject}/{reason}"
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
        "type": "Warning" if reason in _WARNINGS else "Normal",
        "reason": reason,
        "message": message or reason,
        "source": {"component": "roundhouse-operator"},
        "reportingComponent": "roundhouse-operator",
        "count": 1,
        "firstTimestamp": time,
        "lastTimestamp": time,
    }
