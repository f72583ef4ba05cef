"""One request on its way: sent to the best replica, sent again to the next while that can be, relayed, ended once.

    waiting ── first event ──► relaying ── [DONE] and end ──► done
       │  └─ failed: next replica, or an error reply  │
       └─ client gone: cancel                         └─ aborted, cut, silent: error event, connection closed

Nothing reaches the client before the first complete ``data:`` event (or, when it does not stream, before the whole
answer), so until then any failure can be repaired by sending the request elsewhere. An engine's 4xx is the client's and
passes as it is. Every path ends in `_end`, which releases the booking and tells journal and metrics.
"""

from collections.abc import Callable
from enum import Enum, StrEnum, auto
from typing import Any, Final, Protocol

import orjson
from roundhouse_engines.dialect import Mark, Usage

from roundhouse_gateway.answer import AnswerHead
from roundhouse_gateway.bookings import Booking
from roundhouse_gateway.client_connection import ClientConnection
from roundhouse_gateway.client_request import ClientRequest
from roundhouse_gateway.counts import Metrics
from roundhouse_gateway.errors import ApiError
from roundhouse_gateway.journal import CANDIDATES_KEPT, Attempt, Record
from roundhouse_gateway.pick import Choice, Reason
from roundhouse_gateway.replica import Replica
from roundhouse_gateway.replies import LAST_CHUNK, chunk, error_event, error_reply
from roundhouse_gateway.request_body import RequestBody
from roundhouse_gateway.retry_budget import RetryBudget
from roundhouse_gateway.router import Route
from roundhouse_gateway.settings import Settings
from roundhouse_gateway.stream_relay import ModelRename, StreamRelay
from roundhouse_gateway.upstream import Failure, UpstreamConnection

MAX_ANSWER_BYTES: Final = 64 << 20
_REASON_LINES: Final = {reason: f"\r\nx-roundhouse-reason: {reason}\r\n".encode() for reason in Reason}
_MESSAGE_CHARS: Final = 300
_ONLY: Final = Reason.ONLY


class ExchangeHost(Protocol):
    """What a request needs of the data plane."""

    settings: Settings
    metrics: Metrics
    retries: RetryBudget
    clock: Callable[[], float]
    wall_clock: Callable[[], float]

    def leave(self, exchange: "Exchange", record: Record) -> None: ...


class _Phase(Enum):
    WAITING = auto()
    RELAYING = auto()
    DONE = auto()


_WAITING: Final = _Phase.WAITING  # an enum's members are looked up slowly
_RELAYING: Final = _Phase.RELAYING
_DONE: Final = _Phase.DONE


class Cause(StrEnum):
    """What went wrong with one attempt."""

    CONNECT = "connect"
    CUT = "cut"
    PROTOCOL = "protocol"
    STATUS = "status"
    BUSY = "busy"
    SILENCE = "silence"
    ABORT = "abort"
    ERROR = "error"
    DRAIN = "drain"
    SHUTDOWN = "shutdown"
    BUG = "bug"


_CAUSE_OF = {Failure.CONNECT: Cause.CONNECT, Failure.CUT: Cause.CUT, Failure.PROTOCOL: Cause.PROTOCOL}
_BLAMELESS = frozenset({Cause.BUSY, Cause.DRAIN, Cause.SHUTDOWN})
"""Causes that say nothing against the replica's health."""
_SAME_AGAIN = frozenset({Cause.CUT, Cause.STATUS, Cause.ABORT, Cause.ERROR})
"""Causes after which the only replica there is may be asked again."""


class Exchange:
    """Reads an answer for `UpstreamConnection`, serves `ClientConnection`, runs on a `Replica`."""

    __slots__ = (
        "_answer", "_attempt", "_attempts", "_body", "_booking", "_choice", "_client", "_depths", "_heard_at",
        "_host", "_kept", "_parts", "_parts_bytes", "_phase", "_ranking", "_relay", "_replica", "_request", "_route",
        "_sent_at", "_started", "_started_at", "_status", "_ttft_s", "_upstream",
    )  # fmt: skip

    def __init__(
        self,
        host: ExchangeHost,
        client: ClientConnection,
        request: ClientRequest,
        body: RequestBody,
        route: Route,
        booking: Booking,
    ) -> None:
        self._host = host
        self._client = client
        self._request = request
        self._body = body
        self._route = route
        self._booking = booking
        self._phase = _WAITING
        self._kept = False  # what the head of the answer says of the connection
        self._attempts: list[Attempt] = []
        self._ttft_s: float | None = None
        self._upstream: UpstreamConnection | None = None

    def start(self, ranking: list[Choice], now: float) -> None:
        self._started_at = now
        self._started = self._host.wall_clock()
        self._ranking = ranking[:CANDIDATES_KEPT]
        self._depths = self._route.depths
        self._host.retries.request()
        best = ranking[0]
        self._send(best, best.reason or _ONLY, now)

    @property
    def number(self) -> int:
        return self._booking.request

    @property
    def replica(self) -> Replica:
        """Where it runs."""
        return self._replica

    def record(self, finish: str = "open", usage: Usage | None = None, total_s: float | None = None) -> Record:
        """The request for the journal, as it stands."""
        return Record(
            self._booking.request, self._route.service.key, self._body.model, self._route.path, self._started,
            self._body.streams, self._route.prompt.size.bytes, self._ranking, self._depths, self._attempts,
            self._choice.cached_tokens, usage, self._ttft_s, total_s, self._status, finish,
        )  # fmt: skip

    # -- one attempt

    def _send(self, choice: Choice, reason: Reason, now: float) -> None:
        replica = self._route.service.replicas[choice.replica.pod_uid]
        self._choice = choice
        self._replica: Replica = replica
        self._attempt = Attempt(replica, reason)
        self._attempts.append(self._attempt)
        self._route.open(self._booking, choice, replica, now)
        replica.breaker.sent(now)
        replica.exchanges.add(self)
        self._dispatch(now, fresh=False)

    def _dispatch(self, now: float, *, fresh: bool) -> None:
        self._sent_at = self._heard_at = now
        self._status = 0
        self._relay: StreamRelay | None = None
        self._answer: AnswerHead | None = None
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        replica = self._replica
        body = self._body.for_engine(replica.member.engine_model)
        payload = self._request.for_engine(replica.pool.host_header, b"%016x" % self._booking.request, body)
        self._upstream = replica.pool.send(self, payload, fresh=fresh)

    # -- AnswerReader

    def answer_head(self, head: AnswerHead) -> None:
        self._status = head.status
        self._answer = head
        if head.is_event_stream and 200 <= head.status < 300:
            self._relay = StreamRelay(
                self._replica.dialect, drop_usage=self._body.needs_usage_splice, rename=self._rename()
            )

    def answer_chunk(self, framed: bytes, start: int) -> None:
        relay = self._relay
        if (
            relay is not None
            and relay.verbatim
            and self._phase is _RELAYING
            and framed.endswith(b"\n\n\r\n")
            and relay.plain(framed)
            and self._request.head.chunked_reply
        ):
            self._heard_at = self._host.clock()
            self._client.write(framed)
        else:
            self.answer_data(framed[start:-2], False)

    def answer_data(self, data: bytes, complete: bool) -> None:
        if self._phase is _DONE:
            return
        if complete:
            self._upstream = None
        relay = self._relay
        if relay is not None:
            self._stream(relay, data, complete)
        elif complete and not self._parts:
            self._whole(data)
        else:
            self._parts.append(data)
            self._parts_bytes += len(data)
            if self._parts_bytes > MAX_ANSWER_BYTES:
                self._failed(Cause.PROTOCOL, _upstream_error(f"The answer is larger than {MAX_ANSWER_BYTES} bytes."))
            elif complete:
                self._whole(b"".join(self._parts))

    def answer_failed(self, failure: Failure, detail: str) -> None:
        if self._phase is _DONE:
            return
        self._upstream = None
        if failure is Failure.STALE:
            self._dispatch(self._host.clock(), fresh=True)
        elif self._relay is not None and self._relay.end is Mark.DONE:
            self._finish_stream()
        else:
            self._failed(_CAUSE_OF[failure], _upstream_error(f"Replica {self._replica.name}: {detail}."))

    def answer_crashed(self) -> None:
        if self._phase is not _DONE:
            self._upstream = None
            self._give_up(Cause.BUG, _upstream_error(f"The answer of replica {self._replica.name} could not be read."))
        else:  # it broke while it ended: nothing may be left of it
            self._booking.end(self._host.clock())
            self._host.leave(self, self.record("broken"))
            self._client.abort()

    # -- relaying

    def _stream(self, relay: StreamRelay, data: bytes, complete: bool) -> None:
        self._heard_at = self._host.clock()
        try:
            out = relay.feed(data)
        except OverflowError as error:
            self._failed(Cause.PROTOCOL, _upstream_error(f"Replica {self._replica.name}: {error}."))
            return
        end = relay.end
        framed = self._frame(out, last=complete and end is Mark.DONE)
        if self._phase is _WAITING and relay.started:
            self._first_event(self._heard_at)
            framed = self._head(b"transfer-encoding: chunked\r\n" if self._request.head.chunked_reply else b"") + framed
        if framed:
            self._client.write(framed)
        if end is None:
            if complete:
                self._failed(Cause.CUT, _upstream_error(f"Replica {self._replica.name} ended the stream early."))
        elif end is not Mark.DONE:
            self._engine_gave_up(relay)
        elif complete:
            self._end("complete", relay.usage)

    def _frame(self, out: bytes, *, last: bool) -> bytes:
        if not self._request.head.chunked_reply:
            return out
        framed = chunk(out) if out else b""
        return framed + LAST_CHUNK if last else framed

    def _first_event(self, now: float) -> None:
        self._phase = _RELAYING
        self._booking.first_event(now)
        self._replica.succeeded()
        self._ttft_s = now - self._started_at

    def _engine_gave_up(self, relay: StreamRelay) -> None:
        """An abort, or an error event. One that blames the request, before anything else came, passes as it is."""
        if relay.end is Mark.ABORT:
            self._failed(Cause.ABORT, _upstream_error(f"Replica {self._replica.name} aborted the request."))
            return
        status, message = _error_of(relay.error_event.partition(b"data:")[2])
        if self._phase is _WAITING and 400 <= status < 500:
            self._first_event(self._host.clock())
            head = self._head(b"transfer-encoding: chunked\r\n" if self._request.head.chunked_reply else b"")
            self._client.write(head + self._frame(relay.error_event, last=True))
            self._end("refused")
        else:
            self._failed(Cause.ERROR, _upstream_error(f"Replica {self._replica.name} reported: {message}"))

    def _whole(self, body: bytes) -> None:
        """A complete answer that is no stream."""
        status, replica = self._status, self._replica
        if status >= 500:
            self._engine_failed(status, body)
            return
        usage: Usage | None = None
        if status < 300:
            usage = replica.dialect.usage(body)
            rename = self._rename()
            if rename is not None:
                body = rename.apply(body)
            self._booking.answered(self._host.clock())
        replica.succeeded()
        self._client.write(self._head(b"content-length: %d\r\n" % len(body)) + body)
        self._end("complete" if status < 400 else "refused", usage)

    def _engine_failed(self, status: int, body: bytes) -> None:
        _, message = _error_of(body)
        name = self._replica.name
        if status == 503:
            busy = ApiError(503, "overloaded", f"Replica {name} is busy: {message}", retry_after_s=1)
            self._failed(Cause.BUSY, busy)
        else:
            self._failed(Cause.STATUS, _upstream_error(f"Replica {name} answered {status}: {message}"))

    def _rename(self) -> ModelRename | None:
        """Engine's model name → the one that the client asked for."""
        engine, asked = self._replica.member.engine_model, self._body.model
        return ModelRename(engine, asked) if engine and engine != asked else None

    def _head(self, framing: bytes) -> bytes:
        self._kept = self._keeps_alive
        assert self._answer is not None
        parts = [self._answer.relayed, b"x-request-id: ", b"%016x" % self._booking.request, b"\r\n"]
        if self._host.settings.explain_headers:
            parts += [
                self._replica.explain_header, b"x-roundhouse-predicted-cached-tokens: ",
                str(self._choice.cached_tokens).encode(), _REASON_LINES[self._attempt.reason],
            ]  # fmt: skip
        parts += [framing, b"\r\n" if self._kept else b"connection: close\r\n\r\n"]
        return b"".join(parts)

    @property
    def _keeps_alive(self) -> bool:
        request = self._request
        return request.head.keep_alive and request.head.chunked_reply and not self._client.closing

    # -- ServedExchange

    def client_gone(self) -> None:
        self._end("client_gone")

    def client_paused(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def client_resumed(self) -> None:
        if self._upstream is not None:
            self._heard_at = self._host.clock()
            self._upstream.resume()

    # -- for the sweep, the replica, and a shutdown

    def check(self, now: float) -> None:
        """Enforce the time limits. A client that is slow to read stops the clock: its engine is not being read."""
        patience = self._host.settings.patience
        name = self._replica.name
        if self._phase is _RELAYING and self._relay is not None:
            if now - self._heard_at > patience.event_s and not self._client.stalled:
                if self._relay.end is Mark.DONE:
                    self._finish_stream()
                else:
                    text = f"Replica {name} sent nothing for {patience.event_s:g} s."
                    self._failed(Cause.SILENCE, _timeout_error(text))
        elif self._body.streams:
            if now - self._sent_at > patience.first_event_s:
                text = f"Replica {name} sent no event within {patience.first_event_s:g} s."
                self._failed(Cause.SILENCE, _timeout_error(text))
        elif now - self._started_at > patience.total_s:
            self._give_up(Cause.SILENCE, _timeout_error(f"No answer within {patience.total_s:g} s."))

    def replica_leaving(self) -> None:
        self._failed(Cause.DRAIN, _upstream_error(f"Replica {self._replica.name} was shut down."))

    def shut_down(self) -> None:
        """This gateway stops and its drain timeout has passed."""
        error = ApiError(503, "shutting_down", "The gateway is shutting down; send the request again.", retry_after_s=1)
        self._give_up(Cause.SHUTDOWN, error)

    # -- failure and end

    def _failed(self, cause: Cause, error: ApiError) -> None:
        """An attempt failed: send it elsewhere if nothing has reached the client, else tell it."""
        now = self._host.clock()
        if cause not in _BLAMELESS:
            self._replica.failed(now)
        following = self._following(cause, now) if self._phase is _WAITING else None
        if following is None:
            self._give_up(cause, error)
            return
        self._leave_replica(cause.value)
        self._send(following, Reason.RETRY, now)

    def _following(self, cause: Cause, now: float) -> Choice | None:
        if len(self._attempts) >= self._host.settings.patience.attempts:
            return None
        ranking = self._route.rank(now, without={attempt.pod_uid for attempt in self._attempts})
        if not ranking and cause in _SAME_AGAIN:
            ranking = self._route.rank(now)
        return ranking[0] if ranking and self._host.retries.take(now) else None

    def _give_up(self, cause: Cause, error: ApiError) -> None:
        self._attempt.outcome = cause.value
        self._host.metrics.errors[error.code] += 1
        if self._phase is _WAITING:
            self._status = error.status
            request_id = b"%016x" % self._booking.request
            self._kept = self._keeps_alive
            self._client.write(error_reply(error, request_id=request_id, keep_alive=self._kept))
            self._end("error")
        else:
            self._client.write(self._frame(error_event(error), last=True))
            self._end("broken")

    def _finish_stream(self) -> None:
        """[DONE] was relayed, but the engine does not end its answer properly."""
        self._client.write(self._frame(b"", last=True))
        self._end("complete", self._relay.usage if self._relay is not None else None)

    def _leave_replica(self, outcome: str) -> None:
        self._attempt.outcome = outcome
        self._replica.exchanges.discard(self)
        if self._upstream is not None:
            self._upstream.cancel()
            self._upstream = None

    def _end(self, finish: str, usage: Usage | None = None) -> None:
        if self._phase is _DONE:
            return
        self._phase = _DONE
        now = self._host.clock()
        self._leave_replica(finish if self._attempt.outcome == "open" else self._attempt.outcome)
        prompt = self._route.prompt
        self._booking.end(now, usage, None if prompt.exact_tokens is not None else prompt.size)
        self._host.leave(self, self.record(finish, usage, now - self._started_at))
        self._client.finish(self._kept and finish != "broken")


def _upstream_error(message: str) -> ApiError:
    return ApiError(502, "upstream_failed", message)


def _timeout_error(message: str) -> ApiError:
    return ApiError(504, "upstream_timeout", message)


def _error_of(data: bytes) -> tuple[int, str]:
    """(code, message) of an engine's error body, nested or flat; (0, what can be said) when it is neither."""
    try:
        parsed: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        return 0, "no reason given"
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else None
    if not isinstance(error, dict):
        return 0, "no reason given"
    code, message = error.get("code"), error.get("message")
    return code if isinstance(code, int) else 0, str(message)[:_MESSAGE_CHARS] if message else "no reason given"
