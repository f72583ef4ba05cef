"""Status of one EngineReplica, from its pod and lease. Pure; equal facts give equal statuses."""

from typing import Any

from roundhouse_operator.conditions import Verdict, merge_conditions
from roundhouse_operator.diagnosis import Diagnosis
from roundhouse_operator.reasons import Reason
from roundhouse_operator.replica_view import ReplicaView
from roundhouse_operator.timestamps import to_timestamp


def replica_status(view: ReplicaView, diagnosis: Diagnosis, now: float) -> dict[str, Any]:
    before, pod = view.status, view.pod
    generation = int(view.obj["metadata"].get("generation") or 0)
    ready = Verdict("Ready", diagnosis.reason is Reason.READY, diagnosis.reason, diagnosis.message)
    found: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": merge_conditions([ready], before.get("conditions") or [], generation, now),
        "podName": view.name if pod else before.get("podName"),
        "podUID": before.get("podUID") or (pod["metadata"]["uid"] if pod else None),
        "address": view.address or before.get("address"),
        "readyTime": before.get("readyTime") or (to_timestamp(now) if view.ready else None),
        "replicas": 1 if pod else 0,
        "restarts": view.restarts,
        "stack": dict(view.lease.stack) if view.lease and view.lease.stack else before.get("stack"),
    }
    return {name: value for name, value in found.items() if value is not None}
