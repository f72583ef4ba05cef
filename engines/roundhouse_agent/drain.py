"""Drain of one engine, as a state machine without clock or I/O: ``idle → draining → drained``.

Drained means: gateways have been told for half a second, and after that the engine had nothing running or waiting.
What gateways do with streams that outlive the deadline is theirs; a drain never ends by its deadline alone.
"""

from dataclasses import dataclass
from typing import Final

TOLD_FOR_S: Final = 0.5


@dataclass(slots=True)
class Drain:
    """``deadline_ms`` is Unix time; ``told_at`` the monotonic second at which the state was first sent, or given up."""

    deadline_ms: int | None = None
    told_at: float | None = None
    drained: bool = False

    @property
    def active(self) -> bool:
        return self.deadline_ms is not None

    def start(self, deadline_ms: int) -> None:
        """Begin; while one runs, only an earlier deadline changes it."""
        if self.deadline_ms is None or deadline_ms < self.deadline_ms:
            self.deadline_ms = deadline_ms

    def cancel(self) -> bool:
        """False once drained: the replica may be gone the next moment."""
        if self.drained:
            return False
        self.deadline_ms, self.told_at = None, None
        return True

    def told(self, now: float) -> None:
        """The state has been published, or publishing was tried and failed."""
        if self.active and self.told_at is None:
            self.told_at = now

    def observe(self, idle: bool, seen_at: float) -> None:
        """``idle``: at monotonic second ``seen_at`` the engine had no request, or was no more."""
        if self.told_at is not None and idle and seen_at - self.told_at >= TOLD_FOR_S:
            self.drained = True

    def remaining_ms(self, now_ms: int) -> int:
        return 0 if self.deadline_ms is None else max(0, self.deadline_ms - now_ms)
