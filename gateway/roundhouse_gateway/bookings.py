"""The one place where a request enters the books and leaves them, whatever happens to it in between.

A booking is made when the request begins and ended exactly once; between the two it is opened on one replica after
another. The count in flight, the books of all gateways and the lessons of each answer all hang on it.
"""

from uuid import UUID

from roundhouse_engines.dialect import Usage

from roundhouse_gateway.fleet import Lesson, Service
from roundhouse_gateway.learning import busy_share
from roundhouse_gateway.pick import Choice
from roundhouse_gateway.tokens import TextSize


class Booking:
    """``request`` is the u64 id that the books carry."""

    __slots__ = (
        "_choice", "_ended", "_event_tokens", "_first_event_s", "_opened_at", "_service", "_streams", "request",
    )  # fmt: skip

    def __init__(self, service: Service, request: int, now: float, streams: bool) -> None:
        self.request = request
        self._service = service
        self._streams = streams
        self._choice: Choice | None = None
        self._first_event_s = 0.0
        self._ended = False
        service.in_flight += 1
        service.last_request_at = now

    def open(
        self, choice: Choice, now: float, epoch: int, context_tokens: int, expected: list[int], event_tokens: int
    ) -> None:
        """The request goes to ``choice`` now; an earlier replica's booking moves along.

        ``expected``: prefix keys that it will hold and does not yet. ``event_tokens``: cached tokens predicted from
        events alone.
        """
        self._choice = choice
        self._opened_at = now
        self._event_tokens = event_tokens
        pod: UUID = choice.replica.pod_uid
        self._service.view.books.pick(
            now,
            self.request,
            pod,
            epoch,
            prefill_s=choice.own_s,
            context_tokens=context_tokens,
            streams=self._streams,
            expected=expected,
        )

    def first_event(self, now: float) -> None:
        """Prefill is done; from here on only the context counts."""
        self._first_event_s = now - self._opened_at
        self._service.view.books.first_event(now, self.request)

    def answered(self, now: float) -> None:
        """The whole answer came at once, which tells nothing about prefill but that it is done."""
        self._service.view.books.first_event(now, self.request)

    def end(self, now: float, usage: Usage | None = None, size: TextSize | None = None) -> None:
        """The request is over, however it ended. ``usage``: what its answer reported; ``size``: of its prompt, None
        when that came as token ids."""
        if self._ended:
            return
        self._ended = True
        service, choice = self._service, self._choice
        service.in_flight -= 1
        if usage is None or choice is None:
            service.view.books.end(now, self.request)
            return
        cached = usage.cached_tokens
        uncached, busy_s = 0, 0.0
        if cached is not None and self._first_event_s:
            uncached = max(1, usage.prompt_tokens - cached)
            own_s = choice.replica.cost.seconds(uncached, cached)
            busy_s = busy_share(self._first_event_s, choice.booked_s, own_s)
        service.view.books.end(now, self.request, uncached_tokens=uncached, cached_tokens=cached or 0, busy_s=busy_s)
        service.hear(Lesson(choice, usage, size, self._event_tokens))
