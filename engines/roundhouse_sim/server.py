"""HTTP/1.1 on an `asyncio.Protocol`: one `Exchange` per request, answered in order, gone when the client is gone.

Requests that are pipelined wait for the answer before them. A broken request is answered with 400 and the connection
closed; what is too long is refused before it is stored.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, cast

import httptools

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_PIPELINED: Final = 64
JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


class Exchange:
    """One request and its answer. ``gone`` is called if the client leaves before the answer is complete."""

    __slots__ = ("_connection", "_keep_alive", "body", "done", "gone", "headers", "method", "path", "request_id")

    def __init__(
        self,
        connection: "Connection",
        method: str,
        path: str,
        headers: dict[bytes, bytes],
        body: bytes,
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self._keep_alive = keep_alive
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.request_id = b""
        self.gone: Callable[[], None] | None = None
        self.done = False

    def respond(self, status: int, body: bytes, content_type: bytes = JSON) -> None:
        """A whole answer."""
        self._write(b"%scontent-length: %d\r\n\r\n%s" % (self._head(status, content_type), len(body), body))
        self._finish(self._keep_alive)

    def start_stream(self) -> None:
        """Status line and headers of an answer that comes in events."""
        self._write(self._head(200, EVENT_STREAM) + b"transfer-encoding: chunked\r\n\r\n")

    def send(self, *events: bytes) -> None:
        """Each event as a chunk of its own, all in one write."""
        self._write(b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events))

    def end_stream(self) -> None:
        self._write(b"0\r\n\r\n")
        self._finish(self._keep_alive)

    def reset(self) -> None:
        """Break the connection with an RST."""
        self.done = True
        self._connection.reset()

    def leave(self) -> None:
        """The client is gone."""
        if not self.done:
            self.done = True
            if self.gone is not None:
                self.gone()

    def _head(self, status: int, content_type: bytes) -> bytes:
        head = b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\n" % (status, _REASONS.get(status, b"Unknown"), content_type)
        if self.request_id:
            head += b"x-request-id: %s\r\n" % self.request_id
        return head if self._keep_alive else head + b"connection: close\r\n"

    def _write(self, data: bytes) -> None:
        if not self.done:
            self._connection.transport.write(data)

    def _finish(self, keep_alive: bool) -> None:
        if not self.done:
            self.done = True
            self._connection.finished(keep_alive)


class Connection(asyncio.Protocol):
    """``app(exchange)`` answers at once or later; ``connections`` is the server's set of open ones."""

    transport: asyncio.Transport

    def __init__(
        self, app: Callable[[Exchange], None], connections: "set[Connection]", loop: asyncio.AbstractEventLoop
    ) -> None:
        self._app = app
        self._connections = connections
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._current: Exchange | None = None
        self._queue: deque[Exchange] = deque()
        self._broken = False
        self.closed: asyncio.Future[None] = loop.create_future()
        self._clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self.closed.set_result(None)
        self._queue.clear()
        if self._current is not None:
            self._current.leave()
            self._current = None

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # ignored: the request was answered as plain HTTP/1.1
            self._parser = httptools.HttpRequestParser(self)
            if rest := data[upgrade.args[0] :]:
                self.data_received(rest)
            return
        except httptools.HttpParserError:
            self._refuse(400)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(431)

    def finished(self, keep_alive: bool) -> None:
        """The current answer is complete."""
        self._current = None
        if not keep_alive or (self._broken and not self._queue):
            self.transport.close()
        elif self._queue:
            self._loop.call_soon(self._next)

    def reset(self) -> None:
        """RST: close with a linger time of zero."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        self._clear()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._in_headers = False
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._current is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse(413)
        elif not self._broken:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._broken:
            return
        exchange = Exchange(
            self,
            self._parser.get_method().decode("ascii"),
            self._url.decode("latin-1"),
            self._headers,
            b"".join(self._body),
            self._parser.should_keep_alive(),
        )
        self._queue.append(exchange)
        if len(self._queue) > MAX_PIPELINED:
            self._refuse(400)
        elif self._current is None and len(self._queue) == 1:
            self._next()

    def _next(self) -> None:
        if self._queue and self._current is None:
            self._current = self._queue.popleft()
            self._app(self._current)

    def _clear(self) -> None:
        self._in_headers = True
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0

    def _refuse(self, status: int) -> None:
        """Answer what cannot be read, unless an earlier answer is under way, and read no more."""
        if self._broken:
            return
        self._broken = True
        if self._current is None:
            reason = _REASONS[status]
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
                % (status, reason, len(reason), reason)
            )
            self.transport.close()
