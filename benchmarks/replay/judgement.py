"""What a live run amounts to, beside round robin and beside the simulation of the same requests. Pure."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from benchmarks.replay.client import Outcome
from benchmarks.routing.results import percentile

WINDOW_S = 20.0
"""Over so long a hit ratio is taken when it is asked how soon it is back."""

STEP_S = 1.0
NEAR = 0.03
"""Of the simulation's hit ratio over the same requests; a window has about 200 of them."""


class Hits(NamedTuple):
    """Cached and prompt tokens of one request, and when it was sent."""

    at: float
    cached: int
    prompt: int


def hit_ratio(hits: Sequence[Hits]) -> float:
    return sum(hit.cached for hit in hits) / max(1, sum(hit.prompt for hit in hits))


def live_hits(outcomes: Sequence[Outcome]) -> list[Hits]:
    return [Hits(each.sent_at, each.cached_tokens, each.prompt_tokens) for each in outcomes]


def ttft(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """(mean, p90) of what was answered."""
    values = [each.ttft_s for each in outcomes if not each.error]
    return (fmean(values), percentile(values, 0.9)) if values else (0.0, 0.0)


def back_after_s(live: Sequence[Hits], simulated: Sequence[Hits], fault_at: float) -> float:
    """Seconds after ``fault_at`` from which on requests find as much cached as in the simulation, which knows no fault.

    ``simulated`` are the same requests in the same order.
    """
    last = live[-1].at if live else fault_at
    delay = 0.0
    while fault_at + delay + WINDOW_S <= last:
        window = [
            (one, other)
            for one, other in zip(live, simulated, strict=True)
            if fault_at + delay <= one.at < fault_at + delay + WINDOW_S and one.prompt
        ]
        if hit_ratio([one for one, _ in window]) >= hit_ratio([other for _, other in window]) - NEAR:
            return delay
        delay += STEP_S
    return float("inf")
