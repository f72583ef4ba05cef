"""The one place where a request enters the books and leaves them, whatever happens to it in between.

A booking is made when the request begins and ended exactly once; between the two it is opened on one replica after
another. Counts in flight, the books of all gateways, what was learned and whether an index told the truth all hang on
it.
"""

from uuid import UUID

from roundhouse_engines.dialect import Usage

from roundhouse_gateway.fleet import Service
from roundhouse_gateway.learning import busy_share
from roundhouse_gateway.pick import Choice
from roundhouse_gateway.prompt import Prompt
from roundhouse_gateway.tokens import CHUNK_BYTES
from roundhouse_gateway.truth import Verdict


class Booking:
    """``request`` is the u64 id that the books carry."""

    __slots__ = (
        "_ahead_s", "_choice", "_ended", "_event_tokens", "_first_event_s", "_opened_at", "_service", "_streams",
        "request",
    )  # fmt: skip

    def __init__(self, service: Service, request: int, now: float, *, streams: bool) -> None:
        self.request = request
        self._service = service
        self._streams = streams
        self._choice: Choice | None = None
        self._ended = False
        self._first_event_s: float | None = None
        self._event_tokens = 0
        service.in_flight += 1
        service.last_request_at = now

    def open(
        self, choice: Choice, now: float, *, epoch: int, context_tokens: int, expected: list[int], event_tokens: int
    ) -> None:
        """The request goes to ``choice`` now; an earlier replica's booking moves along.

        ``expected``: prefix keys that it will hold and does not yet. ``event_tokens``: cached tokens predicted from
        events alone.
        """
        self._choice = choice
        self._opened_at = now
        self._ahead_s = choice.booked_s
        self._event_tokens = event_tokens
        self._service.view.books.pick(
            now,
            self.request,
            choice.replica.pod_uid,
            epoch,
            prefill_s=choice.own_s,
            context_tokens=context_tokens,
            streams=self._streams,
            expected=expected,
        )
        self._service.learn_mean(choice.own_s, context_tokens)

    def first_event(self, now: float) -> None:
        """Prefill is done; from here on only the context counts."""
        self._first_event_s = now - self._opened_at
        self._service.view.books.first_event(now, self.request)

    def answered(self, now: float) -> None:
        """The whole answer came at once, which tells nothing about prefill but that it is done."""
        self._service.view.books.first_event(now, self.request)

    def end(self, now: float, usage: Usage | None = None, prompt: Prompt | None = None) -> None:
        """The request is over, however it ended. ``usage`` and ``prompt``: what its answer taught."""
        if self._ended:
            return
        self._ended = True
        self._service.in_flight -= 1
        uncached, cached, busy_s = self._sample(usage)
        self._service.view.books.end(now, self.request, uncached_tokens=uncached, cached_tokens=cached, busy_s=busy_s)
        if usage is None or prompt is None:
            return
        if prompt.exact_tokens is None:
            self._service.ratios.learn(prompt.size, usage.prompt_tokens)
        self._service.learn_answer(usage.completion_tokens)
        self._check_truth(usage, now)

    def _sample(self, usage: Usage | None) -> tuple[int, int, float]:
        """(uncached, cached, busy seconds) of an answer that streamed and told its cached tokens."""
        choice = self._choice
        if self._first_event_s is None or usage is None or usage.cached_tokens is None or choice is None:
            return 0, 0, 0.0
        uncached = max(1, usage.prompt_tokens - usage.cached_tokens)
        own_s = choice.replica.cost.seconds(uncached, usage.cached_tokens)
        return uncached, usage.cached_tokens, busy_share(self._first_event_s, self._ahead_s, own_s)

    def _check_truth(self, usage: Usage, now: float) -> None:
        choice = self._choice
        if choice is None or usage.cached_tokens is None or not self._event_tokens:
            return
        pod: UUID = choice.replica.pod_uid
        replica = self._service.replicas.get(pod)
        if replica is None:
            return
        tolerance = 2 * replica.block_size + 2 * CHUNK_BYTES * self._service.ratios.ascii
        verdict = replica.truth.judge(self._event_tokens, usage.cached_tokens, tolerance, now)
        if verdict is not Verdict.FINE:
            replica.distrusted(verdict)
            self._service.view.index.distrust(pod, now)
