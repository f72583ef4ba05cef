"""What a status says about the number of replicas: the condition ScalingActive, and the last decisions. Pure."""

from typing import Any, Final

from roundhouse_operator.autoscale import Bounds, Decision, History, Situation
from roundhouse_operator.conditions import Verdict
from roundhouse_operator.reasons import Reason

KEPT: Final = 5
UNKNOWN_AFTER_S: Final = 30.0


def scaling_verdict(history: History, bounds: Bounds, situation: Situation, now: float) -> Verdict:
    """Of a service with ``spec.scaling``. It must not change with every request: hence the memory of a delay."""
    if history.silent_for(now) > UNKNOWN_AFTER_S:
        text = (
            "not all replicas report their load, so none is stopped — see condition LiveData, and the log of container "
            "agent in their pods"
        )
        return Verdict("ScalingActive", None, Reason.LOAD_UNKNOWN, text)
    if situation.current == bounds.most and history.recent_peak(now, max(bounds.delay_s, 60.0)) > bounds.most:
        text = f"more than {bounds.most} replicas are wished for — raise spec.scaling.max, or let requests wait"
        return Verdict("ScalingActive", True, Reason.AT_MAXIMUM, text)
    return Verdict("ScalingActive", True, Reason.SCALING, f"between {bounds.least} and {bounds.most} replicas, by load")


def fixed_verdict(replicas: int) -> Verdict:
    """Of a service without ``spec.scaling``."""
    text = f"spec.replicas is {replicas} — remove it and set spec.scaling to have replicas by load"
    return Verdict("ScalingActive", False, Reason.FIXED_REPLICAS, text)


def remembered(status: dict[str, Any], decision: Decision, previous: int | None, time: str) -> dict[str, Any]:
    """``status.scaling``, with this decision on top if it is one."""
    decisions: list[Any] = list((status.get("scaling") or {}).get("decisions") or [])
    if decision.reason:
        entry = {
            "time": time,
            "replicas": decision.replicas,
            "previous": previous or 0,
            "reason": decision.reason,
            "message": decision.message,
        }
        decisions = [entry, *decisions][:KEPT]
    return {"replicas": decision.replicas, "decisions": decisions}
