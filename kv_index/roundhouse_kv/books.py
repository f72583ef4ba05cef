"""Bookings in flight of one service, own and other gateways', and the load that they put on each pod.

Pure: clocks come as parameters (monotonic seconds); messages go out by `outbox`, `table` and `asks`, and come in by
`apply`. Each gateway tells its own bookings, one entry per request, and believes others about theirs. A message that
was lost leaves a gap in its writer's sequence: the reader goes on with what it has and asks for a table, which
replaces all that it knew of the writer. Tables come each second anyway, so whatever was lost, doubled or overtaken is
right again with the next one. A writer silent for three seconds is dead, and its bookings with it.

A pod's epoch change voids what was booked on the engine before: those requests are gone.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from roundhouse_kv.books_wire import (
    MAX_EXPECTED_KEYS,
    U32_MAX,
    BookEntry,
    BookMessage,
    BookOp,
    Kind,
    pack_entry,
    pack_header,
    pack_keys,
)
from roundhouse_kv.expected import ExpectedKeys
from roundhouse_kv.pod_books import BookedLoad, Booking, PodBooks

__all__ = ["BookSample", "BookedLoad", "Books"]

COALESCE_S: Final = 0.002
SILENCE_S: Final = 2.6
"""A writer's table comes each second. With the quarter second between two looks a dead one is gone within three."""
EXPECTED_HOLD_S: Final = 2.0
_PICK: Final = BookOp.PICK
_FIRST: Final = BookOp.FIRST
_END: Final = BookOp.END
_SAMPLES_KEPT: Final = 4096
_NOTHING: Final = BookedLoad()


@dataclass(frozen=True, slots=True)
class BookSample:
    """What one request taught: the tokens of its prefill and the busy time they took."""

    pod_uid: UUID
    uncached_tokens: int
    cached_tokens: int
    busy_s: float


@dataclass(slots=True)
class _Writer:
    """``gap``: something of it was lost and the table asked for has not come yet."""

    seq: int
    heard_at: float
    gap: bool = False
    bookings: dict[int, Booking] = field(default_factory=dict)


class Books:
    """``me`` is this gateway's incarnation. ``wake`` is called when there is something to send, once until it is sent.

    ``table_due`` is set when another gateway asked for our table; whoever sends one clears it by `table`.
    """

    def __init__(self, me: int, *, wake: Callable[[], None] | None = None) -> None:
        self.me = me
        self.wake = wake
        self.table_due = False
        self._own: dict[int, Booking] = {}
        self._writers: dict[int, _Writer] = {}
        self._pods: dict[int, PodBooks] = {}  # by the pod's uid as an int, whose hash costs a tenth of a UUID's
        self._epochs: dict[int, int] = {}
        self._expected = ExpectedKeys()
        self._samples: deque[BookSample] = deque(maxlen=_SAMPLES_KEPT)
        self._pending: list[tuple[BookOp, Booking]] = []
        self._asks: set[int] = set()
        self._seq = 0
        self._sent_at = float("-inf")

    @property
    def own_open(self) -> int:
        """Own requests that have not ended."""
        return len(self._own)

    @property
    def all_open(self) -> int:
        return sum(len(pod.open) for pod in self._pods.values())

    @property
    def writers(self) -> Iterable[int]:
        """Other gateways heard within the last three seconds."""
        return self._writers.keys()

    def pick(
        self,
        now: float,
        request: int,
        pod_uid: UUID,
        epoch: int,
        *,
        prefill_s: float,
        context_tokens: int,
        streams: bool,
        priority: int = 0,
        expected: Sequence[int] = (),
    ) -> None:
        """Book an own request, before a byte of it is sent. A second pick of the same request moves it (a retry)."""
        keys = tuple(expected[:MAX_EXPECTED_KEYS]) if expected else ()
        known = self._epochs.get(pod_uid.int)
        if known is None or epoch > known:
            known = self._learn_epoch(pod_uid, epoch, now)
        prefill_us = _microseconds(prefill_s)
        booking = Booking(self.me, request, pod_uid, known, now, prefill_us, context_tokens, streams, priority, keys)
        if request in self._own:
            self._finish(self._own.pop(request), now)
        self._own[request] = booking
        self._open(booking, now)
        self._tell(_PICK, booking)

    def first_event(
        self, now: float, request: int, *, uncached_tokens: int = 0, cached_tokens: int = 0, busy_s: float = 0.0
    ) -> None:
        """The first event of an own request: from here on only its context counts. ``busy_s`` 0: no learning sample.

        For a request that does not stream, call it without a sample when its answer is there, before `end`.
        """
        booking = self._own.get(request)
        if booking is not None and booking.first_at is None:
            self._answer(booking, now, uncached_tokens, cached_tokens, _microseconds(busy_s) if busy_s else 0)
            self._tell(_FIRST, booking)

    def end(
        self, now: float, request: int, *, uncached_tokens: int = 0, cached_tokens: int = 0, busy_s: float = 0.0
    ) -> None:
        """An own request is over, however it ended. Unknown requests are ignored.

        Most engines tell what was cached only at the end of an answer: then the sample of the first event comes here.
        """
        booking = self._own.pop(request, None)
        if booking is not None:
            if busy_s:
                self._teach(booking, uncached_tokens, cached_tokens, _microseconds(busy_s))
            self._finish(booking, now)
            self._tell(_END, booking)

    def apply(self, message: BookMessage, now: float) -> None:
        """A message of the books channel. Own ones that come back are ignored."""
        if message.kind is Kind.ASK:
            if message.writer == self.me:
                self.table_due = True
                self._wake()
            return
        if message.writer == self.me:
            return
        writer = self._writers.get(message.writer)
        if writer is None:
            writer = self._writers[message.writer] = _Writer(0, now)
        writer.heard_at = now
        if message.seq <= writer.seq:
            return
        if message.kind is Kind.TABLE:
            writer.gap = False
            self._replace(message, writer, now)
        else:
            if message.seq != writer.seq + 1 and not writer.gap:
                writer.gap = True
                self._asks.add(message.writer)
                self._wake()
            for entry in message.entries:
                self._apply_entry(message.writer, writer, entry, now)
        writer.seq = message.seq

    def expire(self, now: float) -> None:
        """Drop writers silent for three seconds, expected keys that have had their time, and empty books of pods."""
        for name, writer in list(self._writers.items()):
            if now - writer.heard_at >= SILENCE_S:
                del self._writers[name]
                for booking in writer.bookings.values():
                    self._finish(booking, now)
        self._expected.expire(now)
        for uid in [uid for uid, pod in self._pods.items() if not pod.open]:
            del self._pods[uid]

    def drop_before(self, pod_uid: UUID, epoch: int | None, now: float) -> None:
        """The pod runs ``epoch`` now (None: it is gone): every booking of an earlier one is void."""
        if epoch is None:
            self._epochs.pop(pod_uid.int, None)
            self._void(pod_uid, None, now)
        else:
            self._learn_epoch(pod_uid, epoch, now)

    def outbox(self, now: float) -> bytes | None:
        """What to publish now: None when nothing changed or the last message left less than 2 ms ago.

        Entries are packed without a `BookEntry` in between, which would cost twice as much again.
        """
        if not self._pending or now - self._sent_at < COALESCE_S:
            return None
        pending, self._pending = self._pending, []
        self._seq += 1
        self._sent_at = now
        parts = [pack_header(Kind.DELTA, len(pending), self.me, self._seq)]
        for op, b in pending:
            keys = b.expected if op is _PICK else ()
            age = int((now - b.picked_at) * 1e6 + 0.5)
            parts.append(
                pack_entry(
                    op, b.streams, b.priority, 0, len(keys), 0, b.pod.uid, b.epoch, b.request, age if age > 0 else 0,
                    b.prefill_us, b.context_tokens, b.uncached_tokens, b.cached_tokens, b.busy_us,
                )
            )  # fmt: skip
            if keys:
                parts.append(pack_keys(keys))
        return b"".join(parts)

    def outbox_due(self, now: float) -> float | None:
        """Seconds until `outbox` has something to give; None when nothing is waiting."""
        return max(0.0, self._sent_at + COALESCE_S - now) if self._pending else None

    def table(self, now: float) -> BookMessage:
        """Every own booking, to publish each second, at start and when asked."""
        self.table_due = False
        entries = tuple(_entry(booking, now) for booking in self._own.values())
        self._seq += 1
        self._sent_at = now
        return BookMessage(Kind.TABLE, self.me, self._seq, entries)

    def asks(self) -> list[BookMessage]:
        """Questions to publish: one for each writer of whom something was lost."""
        asks, self._asks = self._asks, set()
        return [BookMessage(Kind.ASK, writer, 0) for writer in sorted(asks)]

    def load(self, pod_uid: UUID, now: float, priority: int = 0) -> BookedLoad:
        """What everybody has booked there; prefill counts bookings of ``priority`` or above."""
        pod = self._pods.get(pod_uid.int)
        return _NOTHING if pod is None else pod.load(now, priority)

    def loads(self, pod_uids: list[UUID], now: float) -> list[BookedLoad]:
        """`load` of many pods."""
        pods = self._pods
        return [_NOTHING if (pod := pods.get(uid.int)) is None else pod.load(now, 0) for uid in pod_uids]

    def expects(self, key: int) -> bool:
        """Some pod is expected to hold it."""
        return self._expected.anywhere(key)

    def expected_depth(self, pod_uid: UUID, keys: Sequence[int], start: int) -> int:
        """How many keys from index ``start`` on are expected on the pod, without a hole."""
        return self._expected.depth(pod_uid, keys, start)

    def take_samples(self) -> list[BookSample]:
        """Learning samples of all gateways since the last call."""
        samples = list(self._samples)
        self._samples.clear()
        return samples

    def _replace(self, message: BookMessage, writer: _Writer, now: float) -> None:
        """A table: what it does not name is over."""
        named = {entry.request for entry in message.entries}
        for request in [request for request in writer.bookings if request not in named]:
            self._finish(writer.bookings.pop(request), now)
        for entry in message.entries:
            self._apply_entry(message.writer, writer, entry, now)
            booking = writer.bookings.get(entry.request)
            if booking is not None and not entry.prefill_us:
                booking.pod.release(booking, now)

    def _apply_entry(self, name: int, writer: _Writer, entry: BookEntry, now: float) -> None:
        booking = writer.bookings.get(entry.request)
        if entry.op is BookOp.END:
            if booking is not None:
                self._teach(booking, entry.uncached_tokens, entry.cached_tokens, entry.busy_us)
            self._finish(writer.bookings.pop(entry.request, None), now)
            return
        if booking is None or (booking.pod_uid, booking.epoch) != (entry.pod_uid, entry.epoch):
            self._finish(writer.bookings.pop(entry.request, None), now)
            if entry.epoch < self._learn_epoch(entry.pod_uid, entry.epoch, now):
                return
            booking = writer.bookings[entry.request] = _booking(name, entry, now)
            self._open(booking, now)
        if entry.op is BookOp.FIRST and booking.first_at is None:
            self._answer(booking, now, entry.uncached_tokens, entry.cached_tokens, entry.busy_us)

    def _open(self, booking: Booking, now: float) -> None:
        pod = self._pods.get(booking.pod_uid.int)
        if pod is None:
            pod = self._pods[booking.pod_uid.int] = PodBooks(booking.pod_uid.bytes, now)
        pod.add(booking)
        booking.pod = pod
        if booking.expected:
            self._expected.add(booking.pod_uid, booking.expected)

    def _answer(self, booking: Booking, now: float, uncached: int, cached: int, busy_us: int) -> None:
        booking.first_at = now
        booking.pod.answer(booking, now)
        if booking.expected:
            self._expected.hold(booking.pod_uid, booking.epoch, booking.expected, now + EXPECTED_HOLD_S)
        if busy_us:
            self._teach(booking, uncached, cached, busy_us)

    def _teach(self, booking: Booking, uncached: int, cached: int, busy_us: int) -> None:
        """The learning sample of a booking; one that came with its first event is not counted again at its end."""
        if busy_us and not booking.busy_us:
            booking.uncached_tokens, booking.cached_tokens = min(uncached, U32_MAX), min(cached, U32_MAX)
            booking.busy_us = busy_us
            self._samples.append(BookSample(booking.pod_uid, uncached, cached, busy_us / 1e6))

    def _finish(self, booking: Booking | None, now: float) -> None:
        """Take it out of its pod's books. Its writer's table is the caller's."""
        if booking is None:
            return
        booking.pod.remove(booking, now)
        if booking.first_at is None and booking.expected:
            self._expected.remove(booking.pod_uid, booking.expected)

    def _learn_epoch(self, pod_uid: UUID, epoch: int, now: float) -> int:
        """The newest epoch known of the pod, which may be this one."""
        known = self._epochs.get(pod_uid.int)
        if known is None or epoch > known:
            self._epochs[pod_uid.int] = epoch
            self._void(pod_uid, epoch, now)
            return epoch
        return known

    def _void(self, pod_uid: UUID, epoch: int | None, now: float) -> None:
        self._expected.drop_before(pod_uid, epoch)
        pod = self._pods.get(pod_uid.int)
        for booking in list(pod.open) if pod is not None else ():
            if epoch is None or booking.epoch < epoch:
                owner = self._own if booking.writer == self.me else self._writers[booking.writer].bookings
                self._finish(owner.pop(booking.request), now)

    def _tell(self, op: BookOp, booking: Booking) -> None:
        self._pending.append((op, booking))
        if len(self._pending) == 1:
            self._wake()

    def _wake(self) -> None:
        if self.wake is not None:
            self.wake()


def _microseconds(seconds: float) -> int:
    return int(min(max(seconds, 0.0) * 1e6 + 0.5, U32_MAX))


def _booking(writer: int, entry: BookEntry, now: float) -> Booking:
    return Booking(
        writer=writer,
        request=entry.request,
        pod_uid=entry.pod_uid,
        epoch=entry.epoch,
        picked_at=now - entry.age_us / 1e6,
        prefill_us=entry.prefill_us,
        context_tokens=entry.context_tokens,
        streams=entry.streams,
        priority=entry.priority,
        expected=entry.expected if entry.op is BookOp.PICK else (),
    )


def _entry(booking: Booking, now: float) -> BookEntry:
    """For a table. A pick that owes no prefill any more says so with 0 µs: only its writer can tell newcomers."""
    picked = booking.first_at is None
    released = picked and not booking.owed
    return BookEntry(
        BookOp.PICK if picked else BookOp.FIRST,
        booking.request,
        booking.pod_uid,
        booking.epoch,
        max(0, int((now - booking.picked_at) * 1e6 + 0.5)),
        booking.streams,
        booking.priority,
        0 if released else booking.prefill_us,
        booking.context_tokens,
        booking.uncached_tokens,
        booking.cached_tokens,
        booking.busy_us,
        booking.expected if picked and not released else (),
    )
