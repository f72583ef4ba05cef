"""Bookings in flight of one service, own and other gateways', and the load that they put on each pod.

Pure: clocks come as parameters (monotonic seconds), messages go out by `outbox`, `table` and `asks`, and come in by
`apply`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from roundhouse_kv.books_wire import BookMessage


@dataclass(frozen=True, slots=True)
class BookedLoad:
    """``prefill_s``: seconds of prefill booked and unanswered. ``requests``: all open; ``unanswered``: no first event yet."""

    prefill_s: float = 0.0
    context_tokens: int = 0
    requests: int = 0
    unanswered: int = 0


@dataclass(frozen=True, slots=True)
class BookSample:
    """What one first event taught: predicted prefill seconds against the busy time it took."""

    pod_uid: UUID
    predicted_s: float
    uncached_tokens: int
    cached_tokens: int
    busy_s: float


class Books:
    """``me`` is this gateway's incarnation. ``wake`` is called when there is something to send."""

    def __init__(self, me: int, *, wake: Callable[[], None] | None = None) -> None:
        self.me = me
        self.wake = wake

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
        """Book an own request; call it at the pick, before a byte is sent. A second pick of one request is a retry: it moves."""
        raise NotImplementedError

    def first_event(
        self, now: float, request: int, *, uncached_tokens: int = 0, cached_tokens: int = 0, busy_s: float = 0.0
    ) -> None:
        """The first event of an own request: only its context counts from here on. ``busy_s`` 0 = no learning sample."""
        raise NotImplementedError

    def end(self, now: float, request: int) -> None:
        """An own request is over, however it ended. Unknown requests are ignored."""
        raise NotImplementedError

    def apply(self, message: BookMessage, now: float) -> None:
        """A message of the books channel; own messages coming back are ignored, an ASK to us makes a table due."""
        raise NotImplementedError

    def expire(self, now: float) -> None:
        """Drop writers silent for three seconds and expected keys that have had their time."""
        raise NotImplementedError

    def drop_before(self, pod_uid: UUID, epoch: int | None) -> None:
        """The pod runs ``epoch`` now (None: it is gone): every booking of an earlier one is void."""
        raise NotImplementedError

    def outbox(self, now: float) -> BookMessage | None:
        """What to publish now: None when nothing changed or the last message left less than 2 ms ago."""
        raise NotImplementedError

    def outbox_due(self, now: float) -> float | None:
        """Seconds until `outbox` has something to give; None when nothing is waiting."""
        raise NotImplementedError

    def table(self, now: float) -> BookMessage:
        """Every own booking, to publish each second, at start and when asked."""
        raise NotImplementedError

    def asks(self) -> list[BookMessage]:
        """Questions to publish: writers whose messages were lost."""
        raise NotImplementedError

    def load(self, pod_uid: UUID, now: float, priority: int = 0) -> BookedLoad:
        """What is booked there by everybody; prefill counts bookings of ``priority`` or above."""
        raise NotImplementedError

    def expected_depth(self, pod_uid: UUID, keys: Sequence[int], start: int) -> int:
        """How many keys from index ``start`` on are expected on the pod, without a hole."""
        raise NotImplementedError

    def take_samples(self) -> list[BookSample]:
        """Learning samples of all gateways since the last call."""
        raise NotImplementedError
