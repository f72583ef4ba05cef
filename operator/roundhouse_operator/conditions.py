"""Conditions: what is written, and when ``lastTransitionTime`` moves."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from roundhouse_operator.timestamps import to_timestamp

MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition as it is now. ``status`` None stands for Unknown."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


def merge_conditions(
    verdicts: Iterable[Verdict], before: Iterable[dict[str, Any]], generation: int, now: float
) -> list[dict[str, Any]]:
    """The new list. The transition time changes only with the status, so equal states give equal lists."""
    old = {condition["type"]: condition for condition in before}
    merged = []
    for verdict in verdicts:
        status = _word(verdict.status)
        last = old.get(verdict.type)
        flipped = last is None or last["status"] != status
        merged.append(
            {
                "type": verdict.type,
                "status": status,
                "reason": str(verdict.reason),
                "message": verdict.message[:MAX_MESSAGE],
                "lastTransitionTime": to_timestamp(now) if last is None or flipped else last["lastTransitionTime"],
                "observedGeneration": generation,
            }
        )
    return merged


def find_condition(conditions: Iterable[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    return next((condition for condition in conditions if condition["type"] == kind), None)


def _word(status: bool | None) -> Literal["True", "False", "Unknown"]:
    if status is None:
        return "Unknown"
    return "True" if status else "False"
