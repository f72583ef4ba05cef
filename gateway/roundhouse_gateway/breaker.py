"""A circuit breaker per replica: after failures in a row it lets nothing through for a while, then one at a time.

Pure: the clock is a parameter. What counts as a failure is the caller's to say (connect failure, 5xx, silence, a cut
before the first event; never a 4xx).
"""

from typing import Final

FAILURES_TO_OPEN: Final = 3
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


class Breaker:
    """``closed_until`` is when requests may go again; 0 while all is well."""

    __slots__ = ("_failures", "closed_until")

    def __init__(self) -> None:
        self._failures = 0
        self.closed_until = 0.0

    def succeeded(self) -> None:
        self._failures = 0
        self.closed_until = 0.0

    def sent(self, now: float) -> None:
        """A request goes to the replica. After a pause it is a probe, and the next one may follow a second later."""
        if self._failures >= FAILURES_TO_OPEN:
            self.closed_until = now + FIRST_PAUSE_S

    def failed(self, now: float) -> None:
        """Each failure from the third on doubles the pause."""
        self._failures += 1
        excess = self._failures - FAILURES_TO_OPEN
        if excess >= 0:
            self.closed_until = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(excess, 10))
