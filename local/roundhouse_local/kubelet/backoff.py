"""Restart back-off of a container: at once, then growing, forgotten after a long good run. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffRule:
    """Seconds. A real kubelet has initial 10, limit 300, reset 600."""

    initial_s: float = 10.0
    limit_s: float = 300.0
    reset_s: float = 600.0


@dataclass(slots=True)
class Backoff:
    rule: BackoffRule
    _next_s: float = 0.0

    def delay(self, ran_s: float) -> float:
        """Seconds to wait before the container that just ran for ``ran_s`` starts again."""
        if ran_s >= self.rule.reset_s:
            self._next_s = 0.0
        delay = self._next_s
        self._next_s = min(max(2 * delay, self.rule.initial_s), self.rule.limit_s)
        return delay
