"""KV events over ZMQ: a SUB socket for what is new, a DEALER for what was missed.

Frames are numbered from 0 by each engine process. The stream starts with everything from the engine's first frame on
that can still be had, and closes each later gap before it passes on the frame behind it, so its reader sees every
frame once and in order, or a batch marked ``gap``. A frame that cannot be read is a gap too.

Two ways to catch up: *replay* (vLLM's protocol, the last so many frames) and, for engines that offer it, a *snapshot*
of the whole cache. The engine's sockets may not be there yet: requests are repeated until they answer or the caller
gives up on the engine.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import zmq
import zmq.asyncio

from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import CacheBatch, CacheEvent
from roundhouse_engines.vllm.frames import FrameDecoder

log = logging.getLogger(__name__)

NO_FRAME: Final = (1 << 64) - 1
REPLY_TIMEOUT_S: Final = 5.0
RECONNECT_MAX_MS: Final = 500
TRIES: Final = 3
BUFFERED_FRAMES: Final = 100_000
_SNAPSHOT: Final = b"snapshot"

T = TypeVar("T")
Frame = tuple[int, bytes]


class EventStream:
    """``batches()`` may be iterated once. ``snapshots``: the engine answers whole-cache snapshot requests."""

    def __init__(self, events: str, replay: str, *, snapshots: bool) -> None:
        self._events = events
        self._replay = replay
        self._snapshots = snapshots
        self._decoder = FrameDecoder()
        self._next = 0
        self._context = zmq.asyncio.Context()

    async def batches(self) -> AsyncIterator[CacheBatch]:
        with self._socket(zmq.SUB, self._events) as subscriber:
            subscriber.subscribe(b"")
            for batch in await self._catch_up(start=True):
                yield batch
            yield CacheBatch(self._next - 1, ())
            while True:
                frame = _frame(await subscriber.recv_multipart())
                if frame is None or frame[0] < self._next:
                    continue
                if frame[0] > self._next:
                    for batch in await self._catch_up(start=False):
                        yield batch
                if frame[0] >= self._next:
                    yield self._batch(frame)

    def close(self) -> None:
        self._context.destroy(linger=0)

    async def _catch_up(self, *, start: bool) -> list[CacheBatch]:
        """What was missed: by replay when it has all of it, else by snapshot, else what replay has left, with a gap."""
        frames = await self._ask_replay(self._next)
        whole = frames is not None and len(frames) > 0 and frames[0][0] == self._next
        if not whole and not (start and frames == []) and self._snapshots and (held := await self._ask_snapshot()):
            return [held]
        return [self._batch(frame) for frame in frames or ()]

    def _batch(self, frame: Frame) -> CacheBatch:
        number, payload = frame
        gap = number != self._next
        self._next = number + 1
        try:
            events, skipped = self._decoded(payload)
            return CacheBatch(number, events, gap, skipped)
        except ProbeError as error:
            log.warning("kv_frame_unreadable", extra={"seq": number, "reason": str(error)})
            return CacheBatch(number, (), gap=True)

    def _decoded(self, payload: bytes, *, reannounced: bool = False) -> tuple[tuple[CacheEvent, ...], int]:
        """Events, and how many were left out. Raises `ProbeError`."""
        before = self._decoder.skipped
        events = self._decoder.decode(payload, reannounced=reannounced)
        return events, self._decoder.skipped - before

    async def _ask_replay(self, start: int) -> list[Frame] | None:
        """Buffered frames from ``start`` on; None when nobody answers."""

        async def collect(dealer: zmq.asyncio.Socket) -> list[Frame]:
            frames: list[Frame] = []
            while (frame := _frame((await _receive(dealer))[1:])) is not None:
                frames.append(frame)
            return frames

        return await self._ask(start.to_bytes(8, "big"), collect)

    async def _ask_snapshot(self) -> CacheBatch | None:
        """The whole cache as one batch that replaces what was known; None when nobody answers or it is unreadable."""

        async def collect(dealer: zmq.asyncio.Socket) -> Frame | None:
            parts = await _receive(dealer)
            return (int.from_bytes(parts[2], "big"), parts[3]) if len(parts) == 4 and parts[1] == _SNAPSHOT else None

        frame = await self._ask(_SNAPSHOT, collect)
        if frame is None:
            return None
        number = -1 if frame[0] == NO_FRAME else frame[0]
        try:
            events, skipped = self._decoded(frame[1], reannounced=True)
        except ProbeError as error:
            log.warning("kv_snapshot_unreadable", extra={"reason": str(error)})
            return None
        self._next = number + 1
        return CacheBatch(number, events, gap=True, skipped=skipped)

    async def _ask(self, request: bytes, collect: Callable[[zmq.asyncio.Socket], Awaitable[T]]) -> T | None:
        """One request on a fresh socket, so that no answer to an earlier one can mix in; repeated when it times out."""
        for _ in range(TRIES if self._replay else 0):
            with self._socket(zmq.DEALER, self._replay) as dealer:
                await dealer.send_multipart([b"", request])
                try:
                    return await collect(dealer)
                except TimeoutError:
                    log.warning("kv_replay_silent", extra={"endpoint": self._replay})
        return None

    @contextmanager
    def _socket(self, kind: int, endpoint: str) -> Iterator[zmq.asyncio.Socket]:
        with self._context.socket(kind) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, BUFFERED_FRAMES)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
            socket.connect(endpoint)
            yield socket


async def _receive(dealer: zmq.asyncio.Socket) -> list[bytes]:
    async with asyncio.timeout(REPLY_TIMEOUT_S):
        parts: list[bytes] = await dealer.recv_multipart()
        return parts


def _frame(parts: list[bytes]) -> Frame | None:
    """Topic, number, payload; None for the end mark of a replay and for anything else."""
    if len(parts) != 3 or len(parts[1]) != 8:
        return None
    number = int.from_bytes(parts[1], "big")
    return None if number == NO_FRAME else (number, parts[2])
