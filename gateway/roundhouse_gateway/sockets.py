"""Non-blocking TCP for the data plane: every connection in one epoll, which the event loop watches as one file.

A transport of the event loop costs more than the system calls that it makes, and a gateway makes little else. Here all
connections that are ready are served in one batch, and what is written in a batch leaves at its end; only what a socket
does not take is kept until it does. `Stream` is what an `asyncio.Transport` would be, with the same rules:
`connection_lost` comes once, last, and never from inside a call of the connection; above ``high`` unsent bytes
`pause_writing` is called, at a quarter of that `resume_writing`.

What epoll says is only ever a hint to try: a descriptor may have been closed and given out anew within a batch.
"""

import asyncio
import errno
import logging
import select
import socket
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol
from weakref import WeakKeyDictionary

log = logging.getLogger(__name__)

READ_BYTES: Final = 64 << 10
AT_ONCE: Final = 64
ACCEPTS_AT_ONCE: Final = 64
TURN_S: Final = 0.005
NO_FILES_PAUSE_S: Final = 0.2

_READ: Final = select.EPOLLIN
_WRITE: Final = select.EPOLLOUT
_BROKEN: Final = select.EPOLLHUP | select.EPOLLERR
_TRANSIENT: Final = frozenset({errno.EAGAIN, errno.EINTR, errno.ECONNABORTED})


class Wire(Protocol):
    """What a connection may do with its transport."""

    def write(self, data: bytes) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def write_eof(self) -> None: ...

    def close(self) -> None:
        """When all is sent."""
        ...

    def abort(self) -> None:
        """Now."""
        ...


class Connection(Protocol):
    """What a stream tells its owner."""

    def connection_made(self, transport: Wire) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> None:
        """The peer sends no more; the stream closes."""
        ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class Stream:
    """One connected socket."""

    def __init__(self, poller: "Poller", sock: socket.socket, connection: Connection) -> None:
        self._poller = poller
        self._sock = sock
        self._fd = sock.fileno()
        self._connection = connection
        self._send: Callable[[bytes], int] = sock.send
        self._recv: Callable[[int], bytes] = sock.recv
        self._received = connection.data_received
        self._queued = b""  # leaves with the batch
        self._unsent = bytearray()
        self._high = 64 << 10
        self._held = False  # pause_writing was called
        self._watched = 0
        self._reading = True
        self._closing = False  # nothing more is read or accepted for writing
        self._eof_wanted = False
        self._over = False
        poller.add(self._fd, self.ready)
        connection.connection_made(self)
        self._watch()

    # -- Wire

    def write(self, data: bytes) -> None:
        if self._closing or self._over or self._eof_wanted:
            return
        if self._unsent:
            self._keep(data)
        elif self._queued:
            self._queued += data
        elif self._poller.batching:
            self._queued = data
            self._poller.queued.append(self)
        else:
            self._send_now(data)

    def send_queued(self) -> None:
        """What was written in this batch leaves."""
        data, self._queued = self._queued, b""
        if data and not self._over:
            self._send_now(data)

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def pause_reading(self) -> None:
        self._reading = False
        self._watch()

    def resume_reading(self) -> None:
        self._reading = True
        self._watch()

    def write_eof(self) -> None:
        if not self._eof_wanted and not self._over:
            self.send_queued()
            self._eof_wanted = True
            if not self._unsent:
                self._shut()

    def close(self) -> None:
        if not self._closing and not self._over:
            self.send_queued()
            self._closing = True
            if self._unsent:
                self._watch()
            else:
                self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    # -- for the poller

    def ready(self, events: int) -> None:
        if events & _WRITE and self._unsent:
            self._flush()
        if events & (_READ | _BROKEN) and not self._over:
            if self._reading and not self._closing:
                self._read()
            elif events & _BROKEN:
                self._look()

    # -- inner

    def _send_now(self, data: bytes) -> None:
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lose(error)
            return
        if sent < len(data):
            self._keep(data[sent:])

    def _keep(self, data: bytes) -> None:
        """The socket is full."""
        self._unsent += data
        self._watch()
        if not self._held and len(self._unsent) > self._high:
            self._held = True
            self._connection.pause_writing()

    def _read(self) -> None:
        try:
            data = self._recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if data:
            self._received(data)
        else:
            self._connection.eof_received()
            self.close()
            self._reading = False
            self._watch()

    def _look(self) -> None:
        """Broken, but nobody reads: tell when nothing is left to be read, else leave it alone until somebody does."""
        try:
            left = self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if left and not self._closing:
            self._poller.watch(self._fd, self._watched, None)
            self._watched = -1
        else:
            self._lose(None)

    def _flush(self) -> None:
        try:
            sent = self._send(self._unsent)  # type: ignore[arg-type]
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        del self._unsent[:sent]
        if not self._unsent:
            if self._eof_wanted:
                self._shut()
            if self._closing:
                self._lose(None)
                return
            self._watch()
        if self._held and len(self._unsent) <= self._high // 4:
            self._held = False
            self._connection.resume_writing()

    def _shut(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._lose(error)

    def _watch(self) -> None:
        """Make epoll watch for what is wanted now."""
        if self._over:
            return
        wanted = _READ if self._reading and not self._closing else 0
        if self._unsent:
            wanted |= _WRITE
        if wanted != self._watched:
            self._poller.watch(self._fd, self._watched, wanted)
            self._watched = wanted

    def _lose(self, error: Exception | None) -> None:
        if not self._over:
            self._over = True
            self._unsent.clear()
            self._poller.remove(self._fd)
            self._sock.close()
            self._poller.yielding = True
            self._poller.loop.call_soon(self._connection.connection_lost, error)


class Listener:
    """Accepts on ``sock`` until it is closed; ``made`` gives the connection for each client."""

    def __init__(self, poller: "Poller", sock: socket.socket, made: Callable[[], Connection]) -> None:
        self._poller = poller
        self._sock = sock
        self._fd = sock.fileno()
        self._made = made
        self._closed = False
        sock.setblocking(False)
        poller.add(self._fd, self.ready)
        poller.watch(self._fd, 0, _READ)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._poller.remove(self._fd)
            self._sock.close()

    def ready(self, events: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if self._closed:
                return
            try:
                sock, _address = self._sock.accept()
            except OSError as error:
                if error.errno not in _TRANSIENT:
                    log.warning("accept_failed error=%s", error)
                    self._poller.watch(self._fd, _READ, 0)
                    self._poller.loop.call_later(NO_FILES_PAUSE_S, self._again)
                return
            adopt(self._poller, sock, self._made())

    def _again(self) -> None:
        if not self._closed:
            self._poller.watch(self._fd, 0, _READ)


class Poller:
    """The epoll of one event loop; see `of_running_loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll = select.epoll()
        self._ready: dict[int, Callable[[int], None]] = {}
        self.batching = False
        """Writes wait for the end of the batch."""
        self.queued: list[Stream] = []
        self.yielding = False
        """Something waits for the event loop."""
        loop.add_reader(self._epoll.fileno(), self._serve)

    def add(self, fd: int, ready: Callable[[int], None]) -> None:
        self._ready[fd] = ready
        self._epoll.register(fd, 0)

    def watch(self, fd: int, now: int, wanted: int | None) -> None:
        """``now`` -1: left alone so far; ``wanted`` None: leave it alone, even when it is broken."""
        if wanted is None:
            self._epoll.unregister(fd)
        elif now < 0:
            self._epoll.register(fd, wanted)
        else:
            self._epoll.modify(fd, wanted)

    def remove(self, fd: int) -> None:
        """Before the descriptor is closed, which takes it out of the epoll as well."""
        self._ready.pop(fd, None)

    def _serve(self) -> None:
        """Serve what is ready, and what comes within a moment after it: while there is traffic, waiting here costs half
        of what going round the event loop does. The loop has its turn after `TURN_S` at the latest."""
        poll = self._epoll.poll
        until = monotonic() + TURN_S
        found = poll(0, AT_ONCE)
        while found:
            self.batching = True
            for fd, events in found:
                serve = self._ready.get(fd)
                if serve is not None:
                    try:
                        serve(events)
                    except Exception:  # a bug that one connection meets must not end all others
                        log.exception("connection_failed")
                        _give_up(serve)
            self.batching = False
            self._send_queued()
            left = until - monotonic()
            if left <= 0 or self.yielding:
                break
            found = poll(left, AT_ONCE)
        self.yielding = False

    def _send_queued(self) -> None:
        """All at once: whoever gets the first is awake when the next ones come, which spares both sides a sleep."""
        queued, self.queued = self.queued, []
        for stream in queued:
            stream.send_queued()


def _give_up(serve: Callable[[int], None]) -> None:
    stream = getattr(serve, "__self__", None)
    if isinstance(stream, Stream):
        stream.abort()


_pollers: "WeakKeyDictionary[asyncio.AbstractEventLoop, Poller]" = WeakKeyDictionary()


def of_running_loop() -> Poller:
    """The running loop's poller, made when it is first asked for."""
    loop = asyncio.get_running_loop()
    poller = _pollers.get(loop)
    if poller is None:
        poller = _pollers[loop] = Poller(loop)
    return poller


def adopt(poller: Poller, sock: socket.socket, connection: Connection) -> Stream:
    """A connected socket becomes ``connection``'s stream."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Stream(poller, sock, connection)


async def connect(address: str, port: int, connection: Connection) -> None:
    """Dial, then `adopt`. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, (address, port))
    except BaseException:
        sock.close()
        raise
    adopt(of_running_loop(), sock, connection)
