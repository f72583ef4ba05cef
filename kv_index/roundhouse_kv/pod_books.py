"""What is booked on one pod: who still owes prefill there, in which order, and how many seconds that is by now.

An engine works prompts off in the order in which it got them, higher priority first. So the *head* is what it works
on: its booking is drained by the time that passes, at most 95 % of it, since it may be nearly done but is not done. A
head that takes more than twice its estimate is in trouble, and what it takes beyond that is added: a hung pod is
dear, not idle. A request that does not stream shows no first event; as head it simply ends when its estimate has
passed.

Seconds are kept as whole microseconds, so that sums come back to exactly zero.
"""

from bisect import insort
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from roundhouse_kv.books_wire import U32_MAX

DRAINED_AT_MOST: Final = 0.95
OVERDUE_AFTER: Final = 2.0


class BookedLoad(NamedTuple):
    """``prefill_s``: seconds of prefill booked and not answered. ``requests``: all open ones; ``unanswered`` of them
    owe
    prefill. ``context_tokens``: what all open ones hold in KV."""

    prefill_s: float = 0.0
    context_tokens: int = 0
    requests: int = 0
    unanswered: int = 0


@dataclass(slots=True, eq=False)
class Booking:
    """One request on one pod. ``owed``: its prefill still counts. ``first_at``: when its first event was seen. ``pod``:
    the books that it stands in."""

    writer: int
    request: int
    pod_uid: UUID
    epoch: int
    picked_at: float
    prefill_us: int
    context_tokens: int
    streams: bool
    priority: int = 0
    expected: tuple[int, ...] = ()
    owed: bool = True
    first_at: float | None = None
    uncached_tokens: int = 0
    cached_tokens: int = 0
    busy_us: int = 0
    pod: "PodBooks" = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.prefill_us <= U32_MAX:
            self.prefill_us = min(max(self.prefill_us, 1), U32_MAX)
        if not 0 <= self.context_tokens <= U32_MAX:
            self.context_tokens = min(max(self.context_tokens, 0), U32_MAX)
        if not -128 <= self.priority <= 127:
            self.priority = min(max(self.priority, -128), 127)

    @property
    def booked(self) -> tuple[float, int]:
        """Earlier or later; of picks in the same instant the smaller request id is earlier."""
        return self.picked_at, self.request


def _place(booking: Booking) -> tuple[int, tuple[float, int]]:
    return -booking.priority, booking.booked


@dataclass(slots=True)
class PodBooks:
    """``freed_at``: when the last head was released; the present head has been worked on since then at most."""

    freed_at: float
    open: set[Booking] = field(default_factory=set)
    waiting: list[Booking] = field(default_factory=list)
    prefill_us: int = 0
    context_tokens: int = 0

    def add(self, booking: Booking) -> None:
        self.open.add(booking)
        self.context_tokens += booking.context_tokens
        if booking.owed:
            self.prefill_us += booking.prefill_us
            if self.waiting:
                insort(self.waiting, booking, key=_place)
            else:
                self.waiting.append(booking)

    def remove(self, booking: Booking, now: float) -> None:
        """The request is over."""
        self.release(booking, now)
        self.open.discard(booking)
        self.context_tokens -= booking.context_tokens

    def answer(self, booking: Booking, now: float) -> None:
        """A first event: ``booking`` owes nothing, nor does what was booked before it at no lower priority."""
        if len(self.waiting) > 1:
            done = [b for b in self.waiting if b.booked < booking.booked and b.priority >= booking.priority]
            for each in done:
                self.release(each, now)
        self.release(booking, now)

    def release(self, booking: Booking, now: float) -> None:
        """Its prefill counts no longer; its context still does."""
        if not booking.owed:
            return
        booking.owed = False
        if self.waiting[0] is booking:
            self.freed_at = now
            del self.waiting[0]
        else:
            self.waiting.remove(booking)
        self.prefill_us -= booking.prefill_us

    def load(self, now: float, priority: int) -> BookedLoad:
        """Prefill and ``unanswered`` count bookings of ``priority`` or above; context and ``requests`` count all."""
        if not self.waiting:
            return BookedLoad(0.0, self.context_tokens, len(self.open), 0)
        self._pass_silent_heads(now)
        waiting = self.waiting
        owed_us = self.prefill_us
        if waiting and waiting[-1].priority < priority:
            waiting = [b for b in waiting if b.priority >= priority]
            owed_us = sum(b.prefill_us for b in waiting)
        seconds = owed_us / 1e6
        if waiting:
            seconds += self._correction(waiting[0], now)
        return BookedLoad(seconds, self.context_tokens, len(self.open), len(waiting))

    def _correction(self, head: Booking, now: float) -> float:
        """What the head's elapsed time takes off, or adds when it is long overdue."""
        estimate = head.prefill_us / 1e6
        elapsed = max(0.0, now - max(head.picked_at, self.freed_at))
        return max(0.0, elapsed - OVERDUE_AFTER * estimate) - min(elapsed, DRAINED_AT_MOST * estimate)

    def _pass_silent_heads(self, now: float) -> None:
        while self.waiting and not self.waiting[0].streams:
            head = self.waiting[0]
            done_at = max(head.picked_at, self.freed_at) + head.prefill_us / 1e6
            if now < done_at:
                return
            self.release(head, done_at)
