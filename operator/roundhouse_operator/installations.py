"""Which of several installations serves an InferenceService. Pure.

The first installation to look at an object writes its name into the status and serves it. Another one that watches the
same namespace asks, by one entry in the same status, and waits: whoever serves the object answers at once, and both
stay quiet; no answer means that nobody is there any more (uninstalled, or installed anew under another name), and the
asking one takes over. The answer is forgotten now and then, so nobody who has gone is remembered for good.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roundhouse_operator.timestamps import from_timestamp, to_timestamp

TAKEOVER_S = 30.0
"""Without an answer for so long, an installation is taken to be gone. Leaders change within half of it."""
FORGET_S = 900.0
"""A refusal is given anew as often as this, by an installation that is still there."""


@dataclass(frozen=True, slots=True)
class Claim:
    """``serves``: this installation plans for the object. ``contender`` belongs into the status, if it is served.

    ``status``: what to write instead when it is not served; None for nothing. ``again``: seconds until the next look.
    """

    serves: bool
    contender: Mapping[str, Any] | None = None
    status: Mapping[str, Any] | None = None
    again: float | None = None


def judge(status: Mapping[str, Any], ours: str, neighbour: str | None, now: float) -> Claim:
    """``neighbour``: the other installation that serves the namespace as far as is known, None when none does."""
    holder = status.get("installation") or neighbour or ours
    contender = status.get("contender")
    age = now - from_timestamp(contender["time"]) if contender else 0.0
    if holder == ours:
        if contender is None or age > FORGET_S:
            return Claim(serves=True)
        return Claim(serves=True, contender={**contender, "refused": True}, again=FORGET_S - age + 1)
    if contender is None or age > FORGET_S + TAKEOVER_S:
        asked = {"installation": ours, "time": to_timestamp(now)}
        return Claim(False, status={**status, "installation": holder, "contender": asked}, again=TAKEOVER_S + 1)
    if contender["installation"] != ours or contender.get("refused"):
        return Claim(False, again=FORGET_S + TAKEOVER_S - age + 1)
    return Claim(serves=True) if age > TAKEOVER_S else Claim(False, again=TAKEOVER_S - age + 1)
