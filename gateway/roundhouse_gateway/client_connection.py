"""A client's connection: bytes → requests, answers in order, and every limit that keeps one client from hurting others.

One request at a time is served; what a client sends ahead (pipelining) waits in a queue, and while something waits the
socket is not read. A request that breaks a limit or the protocol is answered in its turn, then the connection is
closed: the write side at once, the read side when the client has stopped sending or two seconds later, so that the
answer is not lost to a reset. Timeouts are deadlines that one sweep checks (`check`); there are no timers per
connection.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, Protocol

import httptools

from roundhouse_gateway.client_request import NOT_FORWARDED, ClientHead, ClientRequest
from roundhouse_gateway.errors import ApiError
from roundhouse_gateway.heads import HeadCache, LastHead, cut_length
from roundhouse_gateway.replies import CONTINUE
from roundhouse_gateway.settings import Limits
from roundhouse_gateway.sockets import Wire

LINGER_S: Final = 2.0


class ServedExchange(Protocol):
    """What the connection tells the request in progress."""

    def client_gone(self) -> None: ...

    def client_paused(self) -> None: ...

    def client_resumed(self) -> None: ...


class RequestHandler(Protocol):
    """What the connection needs of the data plane."""

    limits: Limits
    clock: Callable[[], float]
    draining: bool
    heads: HeadCache[ClientHead]
    """Of all connections: heads that were parsed before."""
    held_bytes: int
    """Of request bodies, over all connections, until each request ends."""
    heartbeat: float
    """The clock, some tenths of a second late: good enough for deadlines, and cheaper."""

    def opened(self, connection: "ClientConnection") -> None: ...

    def closed(self, connection: "ClientConnection") -> None: ...

    def serve(self, request: ClientRequest, connection: "ClientConnection") -> None:
        """Answer by `ClientConnection.reply`, or register an exchange that will."""
        ...

    def refuse(self, error: ApiError, connection: "ClientConnection") -> None:
        """Answer a request that could not even be read."""
        ...


class _Phase(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    REFUSED = auto()  # nothing more is read as a request


_IDLE: Final = _Phase.IDLE  # an enum's members are looked up slowly
_HEAD: Final = _Phase.HEAD
_BODY: Final = _Phase.BODY
_REFUSED: Final = _Phase.REFUSED


class ClientConnection:
    """``exchange`` is the request in progress when it runs on an engine."""

    __slots__ = (
        "_advancing", "_allowed_body", "_arriving", "_body", "_busy", "_chunked_reply", "_completed", "_deadline",
        "_dropped", "_expects", "_first_read", "_framing", "_handler", "_head_bytes", "_headers", "_held",
        "_keep_alive", "_last_head", "_limits", "_lost", "_parser", "_parts", "_paused", "_phase", "_queue",
        "_serving", "_stalled_at", "_target", "_transport", "_write", "exchange",
    )  # fmt: skip

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._limits = handler.limits
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[ClientRequest | ApiError] = deque()
        self._phase = _IDLE
        self._busy = False
        self._advancing = False
        self._lost = False
        self._completed = False
        self._stalled_at = 0.0
        self._deadline = 0.0
        self._paused = False
        self._expects = False
        self._first_read = b""
        self._held = 0  # bytes of bodies, counted in the handler's `held_bytes` as well
        self._arriving = 0  # of them, of the body that is being read
        self._serving = 0  # of them, of the request in progress
        self._last_head: LastHead[ClientHead] | None = None
        self.exchange: ServedExchange | None = None

    # -- sockets.Connection

    def connection_made(self, transport: Wire) -> None:
        self._transport = transport
        self._write = transport.write
        self._transport.set_write_buffer_limits(self._limits.client_buffer_bytes)
        self._handler.opened(self)
        self._deadline = self._handler.clock() + self._limits.header_timeout_s

    def data_received(self, data: bytes) -> None:
        begins = self._phase is _IDLE and not (self._busy or self._queue)
        if begins and self._take_known(data):
            return
        self._first_read = data if begins else b""
        while data:
            if self._phase is _REFUSED:
                return
            data = self._feed(data)

    def eof_received(self) -> None:
        """Half-closed is gone: nothing tells a client that only stops sending from one that has left."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._handler.closed(self)
        self._queue.clear()
        self._hold(-self._held)
        if self.exchange is not None:
            self.exchange.client_gone()
            self.exchange = None

    def pause_writing(self) -> None:
        self._stalled_at = self._handler.clock()
        if self.exchange is not None:
            self.exchange.client_paused()

    def resume_writing(self) -> None:
        self._stalled_at = 0.0
        if self.exchange is not None:
            self.exchange.client_resumed()

    # -- for the request in progress

    @property
    def closing(self) -> bool:
        """No answer will follow this one, so it should say ``connection: close``."""
        return self._lost or self._handler.draining or (self._phase is _REFUSED and not self._queue)

    @property
    def stalled(self) -> bool:
        """The client does not take what is sent to it."""
        return self._stalled_at > 0

    def write(self, data: bytes) -> None:
        if not self._lost:
            self._write(data)

    def reply(self, data: bytes, keep_alive: bool) -> None:
        """A whole answer, then `finish`."""
        self.write(data)
        self.finish(keep_alive)

    def finish(self, keep_alive: bool) -> None:
        """The answer is complete: go on with the next request, or close."""
        self._busy = False
        self.exchange = None
        if self._lost:
            return
        self._hold(-self._serving)
        self._serving = 0
        if not keep_alive or (self.closing and not self._queue):
            self._close()
            return
        timeout_s = self._limits.idle_timeout_s if self._phase is _IDLE else self._limits.header_timeout_s
        self._deadline = self._handler.heartbeat + timeout_s
        if self._queue or self._paused or self._expects:
            self._advance()

    def abort(self) -> None:
        """Cut the connection: what was sent must not look like a whole answer."""
        if not self._lost:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """For a shutdown: nothing is in progress and nothing half read."""
        if not self._busy and not self._queue and self._phase is _IDLE:
            self._transport.close()

    def check(self, now: float) -> None:
        """Enforce the deadlines."""
        if self._stalled_at and now - self._stalled_at > self._limits.stall_timeout_s:
            self._transport.abort()
        elif not self._busy and now > self._deadline:
            if self._phase in (_IDLE, _REFUSED):
                self._transport.close() if self._phase is _IDLE else self._transport.abort()
            else:
                part = "head" if self._phase is _HEAD else "body"
                self._refuse(
                    ApiError(408, "invalid_request", f"The request's {part} took too long to arrive.", close=True)
                )

    # -- parsing

    def _take_known(self, data: bytes) -> bool:
        """Serve a request that came in one piece and whose head was parsed before; False when it is none."""
        last = self._last_head
        end = last.match(data) if last is not None else 0
        if last is not None and end:
            length, head = last.length, last.parsed
        else:
            end = data.find(b"\r\n\r\n") + 4
            key, length = cut_length(data[:end])
            known = self._handler.heads.get(key)
            if known is None:
                return False
            head = known
            self._last_head = LastHead(data[:end], head)
        if end + length != len(data) or length > self._limits.body_bytes:
            return False
        if length and self._limits.held_bytes < self._handler.held_bytes + length:
            self._refuse(self._no_room())
            return True
        self._hold(length if length > 0 else 0)
        self._serve(ClientRequest(head, data[end:]))
        return True

    def _remember(self, head: ClientHead) -> None:
        """A request that came in one piece: its head need not be parsed again. Only plain ones are kept, whose bytes
        say everything: one length, kept alive, nothing expected."""
        data = self._first_read
        end = data.find(b"\r\n\r\n") + 4
        key, length = cut_length(data[:end])
        if end + length == len(data) and len(self._framing) == 1 and head.keep_alive and head.chunked_reply:
            self._handler.heads.put(key, head)

    def _feed(self, data: bytes) -> bytes:
        """Parse; returns what is still to be fed after a request that asks for an upgrade."""
        was = self._phase
        self._completed = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, ApiError):
                raise
            self._refuse(cause)
            return b""
        except httptools.HttpParserError as error:
            self._refuse(ApiError(400, "invalid_request", f"The request is not valid HTTP: {error}.", close=True))
            return b""
        if self._phase is _HEAD and was in (_IDLE, _HEAD) and not self._completed:
            self._head_bytes += len(data)
            headers = len(self._headers) + self._dropped
            if self._head_bytes > self._limits.head_bytes or headers > self._limits.headers:
                self._refuse(self._head_too_large())
        if self._queue and not self._lost:
            self._paused = True
            self._transport.pause_reading()
        return b""

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request again without its wish, and with its body, which the parser leaves to the new protocol."""
        method = self._parser.get_method()
        self._parser = httptools.HttpRequestParser(self)
        if method == b"CONNECT":
            self._refuse(ApiError(405, "invalid_request", "CONNECT is not supported.", close=True))
            return b""
        head = b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method, self._target, b"".join(self._headers), b"".join(self._framing))
        return head + rest

    def on_message_begin(self) -> None:
        self._phase = _HEAD
        self._head_bytes = 0
        self._target = b""
        self._headers: list[bytes] = []
        self._framing: list[bytes] = []
        self._body = b""
        self._parts: list[bytes] = []
        self._allowed_body = self._limits.body_bytes
        self._expects = False
        self._dropped = 0
        if not self._busy:
            self._deadline = self._handler.heartbeat + self._limits.header_timeout_s

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > self._limits.head_bytes:
            raise self._head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is not _HEAD:
            return  # a trailer
        key = name.lower()
        if key in NOT_FORWARDED:
            self._take_header(key, name, value)
        else:
            self._headers.append(b"%b: %b\r\n" % (name, value))

    def _take_header(self, key: bytes, name: bytes, value: bytes) -> None:
        """A header that is for the gateway."""
        if key == b"content-length":
            self._allowed_body -= int(value)
            self._framing.append(b"%b: %b\r\n" % (name, value))
        elif key == b"transfer-encoding":
            if value.strip().lower() != b"chunked" or any(line.lower().startswith(key) for line in self._framing):
                raise ApiError(501, "invalid_request", "Only 'chunked' is taken as transfer-encoding.", close=True)
            self._framing.append(b"%b: %b\r\n" % (name, value))
        elif key == b"expect":
            self._expects = value.lower() == b"100-continue"
        elif key == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise ApiError(415, "invalid_request", "Compressed request bodies are not supported.", close=True)
        self._dropped += 1

    def on_headers_complete(self) -> None:
        """Within one read headers are not counted one by one: a read is bounded, and `_feed` counts the reads."""
        self._phase = _BODY
        headers, limits = self._headers, self._limits
        if len(headers) + self._dropped > limits.headers or sum(map(len, headers)) > limits.head_bytes:
            raise self._head_too_large()
        if self._allowed_body < 0:
            raise self._body_too_large()
        self._allowed_body = limits.body_bytes
        self._keep_alive = self._parser.should_keep_alive()
        self._chunked_reply = self._parser.get_http_version() != "1.0"
        if not self._busy:
            self._deadline = self._handler.heartbeat + limits.body_timeout_s
            if self._expects:
                self.write(CONTINUE)
                self._expects = False

    def on_body(self, body: bytes) -> None:
        self._allowed_body -= len(body)
        if self._allowed_body < 0:
            raise self._body_too_large()
        self._arriving += len(body)
        self._hold(len(body))
        if self._handler.held_bytes > self._limits.held_bytes:
            raise self._no_room()
        if self._body:
            self._parts.append(body)
        else:
            self._body = body

    def on_message_complete(self) -> None:
        self._completed = True
        self._phase = _IDLE
        if self._parser.should_upgrade():
            return  # comes again without
        body = self._body if not self._parts else b"".join([self._body, *self._parts])
        lines = b"".join(self._headers)
        head = ClientHead(self._parser.get_method(), self._target, lines, self._keep_alive, self._chunked_reply)
        if self._first_read:
            self._remember(head)
            self._first_read = b""
        request = ClientRequest(head, body)
        self._arriving = 0
        if self._busy or self._queue:
            self._queue.append(request)
        else:
            self._serve(request)

    def _serve(self, request: ClientRequest) -> None:
        self._busy = True
        self._serving = len(request.body)
        self._handler.serve(request, self)

    def _hold(self, size: int) -> None:
        """Count ``size`` more (or fewer) bytes of bodies."""
        self._held += size
        self._handler.held_bytes += size

    def _head_too_large(self) -> ApiError:
        limits = self._limits
        return ApiError(
            431,
            "headers_too_large",
            f"The request head is larger than {limits.head_bytes} bytes or has more than {limits.headers} headers.",
            close=True,
        )

    def _body_too_large(self) -> ApiError:
        limit = self._limits.body_bytes
        return ApiError(413, "body_too_large", f"The request body is larger than {limit} bytes.", close=True)

    def _no_room(self) -> ApiError:
        return ApiError(503, "overloaded", "The gateway holds too many bytes of requests.", retry_after_s=1, close=True)

    def _refuse(self, error: ApiError) -> None:
        """Answer ``error`` in its turn; nothing after it is read."""
        self._phase = _REFUSED
        self._hold(-self._arriving)
        self._arriving = 0
        self._body = b""
        self._parts = []
        self._queue.append(error)
        self._advance()

    # -- order

    def _advance(self) -> None:
        """Serve what waits, as long as answers are immediate. An immediate answer comes back here by `finish`."""
        if self._advancing:
            return
        self._advancing = True
        while self._queue and not self._busy and not self._lost:
            waiting = self._queue.popleft()
            self._busy = True
            if isinstance(waiting, ApiError):
                self._handler.refuse(waiting, self)
            else:
                self._serve(waiting)
        self._advancing = False
        if not self._busy and not self._lost and not self._queue:
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            if self._expects and self._phase is _BODY:
                self.write(CONTINUE)
                self._expects = False

    def _close(self) -> None:
        """Send what is buffered and close; unread bytes of the client get a moment so that they cause no reset."""
        self._queue.clear()
        self._phase = _REFUSED
        self._deadline = self._handler.clock() + LINGER_S
        self._transport.write_eof()
        self._transport.resume_reading()
