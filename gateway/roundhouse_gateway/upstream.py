"""Connections to one engine: a keep-alive pool, and the protocol that parses what comes back.

A connection carries one request at a time and goes back into the pool when its answer was read to the end. A kept
connection that turns out to be closed before a byte of the answer came is no fault of the replica: the caller sends the
request again on a fresh one (`Failure.STALE`). Nothing here knows about routing or retries.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

import httptools

from roundhouse_gateway.answer import MAX_HEAD_BYTES, AnswerHead, ChunkedBody, read_head
from roundhouse_gateway.heads import LastHead
from roundhouse_gateway.sockets import Wire, connect

log = logging.getLogger(__name__)


class Failure(Enum):
    """Why no (whole) answer came."""

    CONNECT = auto()  # refused, unreachable, or not within the deadline
    STALE = auto()  # a kept connection had been closed; nothing was received
    CUT = auto()  # the connection broke
    PROTOCOL = auto()  # not HTTP


class AnswerReader(Protocol):
    """The request that a connection works for. A callback may cancel or send elsewhere; nothing follows it then."""

    def answer_head(self, head: AnswerHead) -> None: ...

    def answer_chunk(self, framed: bytes, start: int) -> None:
        """A read that is one chunk of the body, with its framing: ``framed[start:-2]``. The answer goes on."""
        ...

    def answer_data(self, data: bytes, complete: bool) -> None:
        """Body bytes of one read, de-chunked, maybe none; ``complete``: the answer ends here."""
        ...

    def answer_failed(self, failure: Failure, detail: str) -> None: ...

    def answer_crashed(self) -> None:
        """One of the callbacks raised: end the request, whatever state it is in."""
        ...


class UpstreamConnection:
    """One TCP connection to an engine."""

    __slots__ = (
        "_chunks", "_head", "_in_body", "_last_head", "_left", "_lost", "_paused", "_payload", "_pool", "_reader",
        "_received", "_rest", "_reused", "_transport", "idle_since",
    )  # fmt: skip

    def __init__(self, pool: "UpstreamPool") -> None:
        self._pool = pool
        self._transport: Wire | None = None
        self._reader: AnswerReader | None = None
        self._head: AnswerHead | None = None
        self._last_head: LastHead[AnswerHead] | None = None
        self._chunks: ChunkedBody | None = None
        self._in_body = False
        self._left = -1  # bytes of the body still to come; -1: not told beforehand
        self._rest = b""
        self._payload = b""
        self._reused = False
        self._received = False
        self._lost = False
        self._paused = False
        self.idle_since = 0.0

    # -- for the pool and the request

    @property
    def busy(self) -> bool:
        return self._reader is not None

    def send(self, reader: AnswerReader, payload: bytes) -> None:
        """Start a request; while the connection is still being made, it leaves when it is there."""
        self._reader = reader
        self._rest = b""
        self._received = False
        self._in_body = False
        if self._transport is None:
            self._payload = payload
        else:
            self._reused = True
            self._transport.write(payload)

    def cancel(self) -> None:
        """The request is over for its reader: an engine that is still working sees the connection close."""
        self._reader = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None and self._reader is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.resume_reading()

    def connect_failed(self, detail: str) -> None:
        self._lost = True
        self._fail(Failure.CONNECT, detail)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- sockets.Connection

    def connection_made(self, transport: Wire) -> None:
        self._transport = transport
        self._pool.opened(self)
        if self._reader is None:  # cancelled meanwhile: good for the next request
            self._pool.release(self)
        else:
            transport.write(self._payload)
        self._payload = b""

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            self.cancel()  # nobody asked for this
            return
        self._received = True
        try:
            self._take(reader, data)
        except (httptools.HttpParserError, ValueError) as error:
            self._fail(Failure.PROTOCOL, str(error) or type(error).__name__)
            self.cancel()
        except Exception:  # a bug that one answer meets must not leave its request open for ever
            log.exception("answer_failed")
            self._reader = None
            self.cancel()
            reader.answer_crashed()

    def eof_received(self) -> None:
        if self._reader is not None and self._in_body and self._left < 0 and self._chunks is None:
            self._complete(b"")  # an answer without length or chunks ends with the connection

    def pause_writing(self) -> None:
        """A request is sent whole, however slowly the engine takes it."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._pool.lost(self)
        if not self._received and self._reused:
            self._fail(Failure.STALE, "kept connection was closed")
        else:
            self._fail(Failure.CUT, str(exc) if exc else "connection closed")

    # -- inner

    def _take(self, reader: AnswerReader, data: bytes) -> None:
        if not self._in_body:
            data, head = self._take_head(data)
            if head is None:
                return
            reader.answer_head(head)
            if self._reader is not reader:
                return
        chunks = self._chunks
        if chunks is not None:
            if data:
                start = chunks.whole_chunk(data)
                if start:
                    reader.answer_chunk(data, start)
                    return
                data = chunks.feed(data)
            complete = chunks.complete
        elif self._left >= 0:
            self._left -= len(data)
            if self._left < 0:
                raise ValueError("more than one answer")
            complete = not self._left
        else:
            complete = False
        if complete:
            self._complete(data)
        elif data:
            reader.answer_data(data, False)

    def _take_head(self, data: bytes) -> tuple[bytes, AnswerHead | None]:
        """Wait for the whole head and read it; returns what follows it as well."""
        last = self._last_head
        if self._rest:
            data, self._rest = self._rest + data, b""
        elif last is not None and (end := last.match(data)):
            self._begin(last.parsed, last.length)
            return data[end:], last.parsed
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4 or end > MAX_HEAD_BYTES:
                if len(data) > MAX_HEAD_BYTES:
                    raise ValueError("answer head too large")
                if not b"HTTP/1.".startswith(data[:7]):
                    raise ValueError("not an HTTP answer")
                self._rest = data
                return b"", None
            head, length = read_head(data[:end])
            if head.plain:
                self._last_head = LastHead(data[:end], head)
            data = data[end:]
            if head.status >= 200:
                break
        self._begin(head, length)
        return data, head

    def _begin(self, head: AnswerHead, length: int) -> None:
        """What follows is the body."""
        self._head = head
        self._in_body = True
        self._chunks = ChunkedBody() if head.chunked and head.has_body else None
        self._left = (length if head.has_length else -1) if head.has_body else 0

    def _complete(self, data: bytes) -> None:
        """The answer has come to its end: the connection is free before its reader goes on."""
        reader, head = self._reader, self._head
        if self._paused:
            self.resume()
        self._reader = None
        if head is not None and head.reusable and not self._lost:
            self._pool.release(self)
        else:
            self.close()
        if reader is not None:
            reader.answer_data(data, True)

    def _fail(self, failure: Failure, detail: str) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.answer_failed(failure, detail)


class UpstreamPool:
    """Connections to one address. The pool owns the tasks that dial; `close` ends them."""

    def __init__(self, address: str, port: int, *, connect_s: float, idle_s: float, clock: Callable[[], float]) -> None:
        self.address = address
        self.port = port
        self.host_header = (f"[{address}]:{port}" if ":" in address else f"{address}:{port}").encode()
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._clock = clock
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._dials: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def send(self, reader: AnswerReader, payload: bytes, *, fresh: bool = False) -> UpstreamConnection:
        """Send on a kept connection (the one used last), or dial one. Failures come through ``reader`` only."""
        if self._idle and not fresh:
            connection = self._idle.pop()
        else:
            connection = UpstreamConnection(self)
            dial = asyncio.get_running_loop().create_task(self._dial(connection))
            self._dials.add(dial)
            dial.add_done_callback(self._dials.discard)
        connection.send(reader, payload)
        return connection

    async def _dial(self, connection: UpstreamConnection) -> None:
        try:
            async with asyncio.timeout(self._connect_s):
                await connect(self.address, self.port, connection)
        except TimeoutError:
            connection.connect_failed(f"no connection within {self._connect_s:g} s")
        except OSError as error:
            connection.connect_failed(error.strerror or str(error))

    def opened(self, connection: UpstreamConnection) -> None:
        self._open.add(connection)

    def release(self, connection: UpstreamConnection) -> None:
        if self._closed:
            connection.close()
        else:
            connection.idle_since = self._clock()
            self._idle.append(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close what has been idle too long; the list is ordered by last use."""
        while self._idle and now - self._idle[0].idle_since > self._idle_s:
            self._idle.pop(0).close()

    def retire(self) -> None:
        """The replica is gone: keep nothing; requests in progress go on until they end by themselves."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def close(self) -> None:
        """Cut everything; returns when no dial is left."""
        self.retire()
        for connection in list(self._open):
            connection.cancel()
        for dial in list(self._dials):
            dial.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)
