"""How many retries the gateway may make: a share of its requests and a few in reserve, so that a fleet in trouble is
not drowned by its own retries (token bucket after Finagle's RetryBudget).
"""

from typing import Final

SHARE: Final = 0.2
RESERVE: Final = 100.0
RESERVE_PER_S: Final = 2.0


class RetryBudget:
    __slots__ = ("_filled_at", "_tokens")

    def __init__(self, now: float) -> None:
        self._tokens = RESERVE
        self._filled_at = now

    def request(self) -> None:
        """A new request pays in."""
        self._tokens = min(RESERVE, self._tokens + SHARE)

    def take(self, now: float) -> bool:
        """One retry, if there is budget for it."""
        self._tokens = min(RESERVE, self._tokens + RESERVE_PER_S * max(0.0, now - self._filled_at))
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
