"""Does a replica hold what its events say? A one-sided check of predicted against reported cached tokens; pure.

Only predictions from events count, and only too much of them: a replica that caches more than predicted is no lie. Five
misses in the last twenty eligible requests → its snapshot is loaded again; a second time within five minutes → it is
routed by history alone from then on, which is an alert.
"""

from collections import deque
from enum import Enum, auto
from typing import Final

WINDOW: Final = 20
MISSES: Final = 5
SECOND_CHANCE_S: Final = 300.0


class Verdict(Enum):
    FINE = auto()
    RELOAD = auto()
    HISTORY_ONLY = auto()


class TruthCheck:
    """One replica's record."""

    def __init__(self) -> None:
        self._misses: deque[bool] = deque(maxlen=WINDOW)
        self._reloaded_at: float | None = None
        self.history_only = False

    def judge(self, predicted: int, reported: int, tolerance: float, now: float) -> Verdict:
        """``tolerance`` is two blocks and two chunks, in tokens. Predictions of nothing teach nothing."""
        if predicted <= 0 or self.history_only:
            return Verdict.FINE
        self._misses.append(predicted - reported > tolerance)
        if sum(self._misses) < MISSES:
            return Verdict.FINE
        self._misses.clear()
        if self._reloaded_at is not None and now - self._reloaded_at < SECOND_CHANCE_S:
            self.history_only = True
            return Verdict.HISTORY_ONLY
        self._reloaded_at = now
        return Verdict.RELOAD
