"""The data plane's own sockets keep an asyncio transport's promises: one real connection, two ends of it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from roundhouse_gateway import sockets

BIG = b"x" * (8 << 20)


class Recorder:
    """A connection that writes down what it is told."""

    def __init__(self) -> None:
        self.data = b""
        self.said: list[str] = []
        self.changed = asyncio.Event()
        self.error: Exception | None = None
        self.wire: sockets.Wire | None = None
        self.bug = False

    async def until(self, holds: Callable[["Recorder"], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds(self):
                self.changed.clear()
                await self.changed.wait()

    def _say(self, word: str) -> None:
        self.said.append(word)
        self.changed.set()

    def connection_made(self, transport: sockets.Wire) -> None:
        self.wire = transport
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        if self.bug:
            raise RuntimeError("bug")
        self.data += data
        self.changed.set()

    def eof_received(self) -> None:
        self._say("eof")

    def pause_writing(self) -> None:
        self._say("pause")

    def resume_writing(self) -> None:
        self._say("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._say("lost")


class Ends:
    """Our end is served by the running loop's poller, the peer's is a plain socket."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        self.seen = Recorder()
        self.stream = sockets.adopt(sockets.of_running_loop(), ours, self.seen)

    async def read(self, size: int) -> bytes:
        loop, parts = asyncio.get_running_loop(), bytearray()
        async with asyncio.timeout(10):
            while len(parts) < size and (part := await loop.sock_recv(self.peer, 1 << 16)):
                parts += part
        return bytes(parts)

    async def lost(self) -> None:
        await self.seen.until(lambda seen: "lost" in seen.said)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    both = Ends()
    yield both
    both.stream.abort()
    both.peer.close()


async def test_bytes_go_both_ways(ends: Ends) -> None:
    ends.peer.send(b"ping")
    await ends.seen.until(lambda seen: seen.data == b"ping")
    ends.stream.write(b"po")
    ends.stream.write(b"ng")
    assert await ends.read(4) == b"pong"


async def test_what_the_socket_does_not_take_is_kept_in_order(ends: Ends) -> None:
    ends.stream.set_write_buffer_limits(1000)
    ends.stream.write(BIG)
    ends.stream.write(b"end")
    assert ends.seen.said == ["pause"]
    assert await ends.read(len(BIG) + 3) == BIG + b"end"
    await ends.seen.until(lambda seen: "resume" in seen.said)
    assert ends.seen.said == ["pause", "resume"]


async def test_close_sends_what_is_left_and_takes_nothing_more(ends: Ends) -> None:
    ends.stream.write(BIG)
    ends.stream.close()
    ends.stream.write(b"too late")
    assert ends.seen.said == ["pause"]
    assert await ends.read(len(BIG) + 1) == BIG
    await ends.lost()
    assert ends.seen.error is None


async def test_abort_is_told_later_and_once(ends: Ends) -> None:
    ends.stream.write(BIG)
    ends.stream.abort()
    ends.stream.abort()
    assert "lost" not in ends.seen.said
    await ends.lost()
    assert ends.seen.said.count("lost") == 1


async def test_the_end_of_the_peer_closes(ends: Ends) -> None:
    ends.peer.close()
    await ends.lost()
    assert ends.seen.said == ["eof", "lost"]


async def test_a_half_close_leaves_the_other_direction_open(ends: Ends) -> None:
    ends.stream.write(b"bye")
    ends.stream.write_eof()
    assert await ends.read(100) == b"bye"
    ends.peer.send(b"still here")
    await ends.seen.until(lambda seen: seen.data == b"still here")


async def test_paused_reading_reads_nothing_until_resumed(ends: Ends) -> None:
    ends.stream.pause_reading()
    ends.peer.send(b"wait")
    await asyncio.sleep(0.02)
    assert ends.seen.data == b""
    ends.stream.resume_reading()
    await ends.seen.until(lambda seen: seen.data == b"wait")


async def test_a_peer_that_leaves_while_nobody_reads_is_noticed_and_its_last_words_are_read(ends: Ends) -> None:
    ends.stream.pause_reading()
    ends.peer.send(b"last words")
    ends.peer.close()
    await asyncio.sleep(0.02)
    assert "lost" not in ends.seen.said
    ends.stream.resume_reading()
    await ends.lost()
    assert ends.seen.data == b"last words"


async def test_writing_to_one_that_has_left_loses_the_connection(ends: Ends) -> None:
    ends.stream.pause_reading()
    ends.peer.close()
    ends.stream.write(b"hello?")
    await ends.lost()


async def test_a_bug_in_one_connection_ends_that_one_alone(ends: Ends) -> None:
    other = Ends()
    ends.seen.bug = True
    ends.peer.send(b"x")
    other.peer.send(b"y")
    await ends.lost()
    await other.seen.until(lambda seen: seen.data == b"y")
    other.stream.abort()
    other.peer.close()


async def test_a_listener_accepts_until_it_is_closed() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    accepted = Recorder()
    listener = sockets.Listener(sockets.of_running_loop(), listening, lambda: accepted)
    loop = asyncio.get_running_loop()
    client = Recorder()
    async with asyncio.timeout(10):
        await sockets.connect(*address, client)
    await accepted.until(lambda seen: seen.wire is not None)
    listener.close()
    with socket.socket() as late:
        late.setblocking(False)
        with pytest.raises(ConnectionRefusedError):
            await loop.sock_connect(late, address)
    assert client.wire is not None
    client.wire.close()
    await accepted.until(lambda seen: "lost" in seen.said)
