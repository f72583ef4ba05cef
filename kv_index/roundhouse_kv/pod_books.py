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
from operator import attrgetter
from typing import Final
from uuid import UUID

from roundhouse_kv.books_wire import U32_MAX

DRAINED_AT_MOST: Final = 0.95
OVERDUE_AFTER: Final = 2.0


class BookedLoad:
    """``prefill_s``: seconds of prefill booked and not answered. ``requests``: all open ones; ``unanswered`` of them
    owe prefill. ``context_tokens``: what all open ones hold in KV."""

    __slots__ = ("context_tokens", "prefill_s", "requests", "unanswered")

    def __init__(self, prefill_s: float = 0.0, context_tokens: int = 0, requests: int = 0, unanswered: int = 0) -> None:
        self.prefill_s = prefill_s
        self.context_tokens = context_tokens
        self.requests = requests
        self.unanswered = unanswered

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BookedLoad) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"BookedLoad{self._values()}"

    def _values(self) -> tuple[float, int, int, int]:
        return self.prefill_s, self.context_tokens, self.requests, self.unanswered


class Booking:
    """One request on one pod. ``owed``: its prefill still counts. ``first_at``: when its first event was seen. ``pod``:
    the books that it stands in. ``order``: its place in the pod's queue; of picks in the same instant the smaller
    request id is earlier."""

    __slots__ = (
        "busy_us", "cached_tokens", "context_tokens", "epoch", "expected", "first_at", "order", "owed", "picked_at",
        "pod", "pod_uid", "prefill_us", "priority", "request", "streams", "uncached_tokens", "writer",
    )  # fmt: skip

    pod: "PodBooks"

    def __init__(
        self,
        writer: int,
        request: int,
        pod_uid: UUID,
        epoch: int,
        picked_at: float,
        prefill_us: int,
        context_tokens: int,
        streams: bool,
        priority: int = 0,
        expected: tuple[int, ...] = (),
    ) -> None:
        self.writer = writer
        self.request = request
        self.pod_uid = pod_uid
        self.epoch = epoch
        self.picked_at = picked_at
        self.prefill_us = prefill_us if 1 <= prefill_us <= U32_MAX else min(max(prefill_us, 1), U32_MAX)
        self.context_tokens = context_tokens if 0 <= context_tokens <= U32_MAX else min(max(context_tokens, 0), U32_MAX)
        self.streams = streams
        self.priority = priority if -128 <= priority <= 127 else min(max(priority, -128), 127)
        self.expected = expected
        self.owed = True
        self.first_at: float | None = None
        self.uncached_tokens = self.cached_tokens = self.busy_us = 0
        self.order = (-self.priority, picked_at, request)


_ORDER = attrgetter("order")


@dataclass(slots=True)
class PodBooks:
    """``uid``: the pod's. ``freed_at``: when the last head was released; the present head has been worked on since then
    at most."""

    uid: bytes
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
            waiting = self.waiting
            if not waiting or waiting[-1].order < booking.order:
                waiting.append(booking)
            else:
                insort(waiting, booking, key=_ORDER)

    def remove(self, booking: Booking, now: float) -> None:
        """The request is over."""
        self.release(booking, now)
        self.open.discard(booking)
        self.context_tokens -= booking.context_tokens

    def answer(self, booking: Booking, now: float) -> None:
        """A first event: ``booking`` owes nothing, nor does what was booked before it at no lower priority."""
        order = booking.order
        done = []
        for each in self.waiting:
            if each.order >= order:
                break  # booked later, or less urgent
            if each.order[1:] < order[1:]:
                done.append(each)
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
        waiting = self.waiting
        if waiting and not waiting[0].streams:
            self._pass_silent_heads(now)
        if not waiting:
            return BookedLoad(0.0, self.context_tokens, len(self.open), 0)
        owed_us = self.prefill_us
        if waiting[-1].priority < priority:
            waiting = [b for b in waiting if b.priority >= priority]
            if not waiting:
                return BookedLoad(0.0, self.context_tokens, len(self.open), 0)
            owed_us = sum(b.prefill_us for b in waiting)
        head, freed_at = waiting[0], self.freed_at
        estimate = head.prefill_us / 1e6
        elapsed = now - (head.picked_at if head.picked_at > freed_at else freed_at)
        seconds = owed_us / 1e6
        if elapsed > 0:
            # What its elapsed time takes off the head, or adds when it is long overdue.
            seconds -= min(elapsed, DRAINED_AT_MOST * estimate)
            if elapsed > OVERDUE_AFTER * estimate:
                seconds += elapsed - OVERDUE_AFTER * estimate
        return BookedLoad(seconds, self.context_tokens, len(self.open), len(waiting))

    def _pass_silent_heads(self, now: float) -> None:
        while self.waiting and not self.waiting[0].streams:
            head = self.waiting[0]
            done_at = max(head.picked_at, self.freed_at) + head.prefill_us / 1e6
            if now < done_at:
                return
            self.release(head, done_at)
