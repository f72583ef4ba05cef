"""KV events over ZMQ, in vLLM's protocol, with one addition for agents that come late.

PUB socket: three frames, topic (empty), sequence number (8 bytes, big endian, from 0), payload. The payload is msgpack
``[time, [event…], 0]``; events are maps with a ``type`` (see `kvcache.events`).

ROUTER socket, asked from a DEALER:

* ``[b"", start (8 bytes)]`` → ``[b"", topic, sequence number, payload]`` for each of the last `BUFFERED` batches
  from ``start`` on, then ``[b"", b"", ff×8, b""]``;
* ``[b"", b"snapshot"]`` → ``[b"", b"snapshot", sequence number, payload]``: one batch of BlockStored events,
  parents before children, that is the whole cache after the batch of that number (ff×8: nothing was published yet).
  Whoever applies it to an empty index and goes on with the next number holds exactly what the cache holds.

A step's events are published before its tokens are delivered. Runs in the server's event loop; the engine never
waits for it.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from roundhouse_torch.errors import SettingsError
from roundhouse_torch.events.mirror import CacheMirror
from roundhouse_torch.kvcache.events import CacheEvent

log = logging.getLogger(__name__)

BUFFERED = 10_000
NONE = b"\xff" * 8
SNAPSHOT = b"snapshot"
SEND_BUFFER = 100_000
"""Messages that wait for a slow subscriber before ZMQ drops some, which shows as a gap in the numbers."""


class EventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    ts: float
    events: Sequence[CacheEvent]
    data_parallel_rank: int = 0


class EventPublisher:
    """``replay`` may be empty. Raises `SettingsError` when an endpoint cannot be bound.

    ``clock`` gives Unix seconds.
    """

    def __init__(self, endpoint: str, replay: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._next = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=BUFFERED)
        self._mirror = CacheMirror()
        self._encode = msgspec.msgpack.Encoder().encode
        self._context = zmq.asyncio.Context()
        self._pub = zmq.Context(self._context).socket(zmq.PUB)
        _bind(self._pub, endpoint)
        self._router = self._context.socket(zmq.ROUTER) if replay else None
        if self._router is not None:
            _bind(self._router, replay)

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """One batch; no events, no batch."""
        if not events:
            return
        for event in events:
            self._mirror.apply(event)
        payload = self._encode(EventBatch(self._clock(), events))
        self._buffer.append((self._next, payload))
        self._pub.send_multipart([b"", self._next.to_bytes(8, "big"), payload], zmq.NOBLOCK)
        self._next += 1

    async def serve_requests(self) -> None:
        """Answer replay and snapshot requests until cancelled."""
        if self._router is None:
            return
        while True:
            client, *_, request = await self._router.recv_multipart()
            for reply in self._replies(request):
                await self._router.send_multipart([client, b"", *reply])

    def close(self) -> None:
        self._pub.close(linger=0)
        if self._router is not None:
            self._router.close(linger=0)
        self._context.term()

    def _replies(self, request: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        if request == SNAPSHOT:
            last = (self._next - 1).to_bytes(8, "big") if self._next else NONE
            yield SNAPSHOT, last, self._encode(EventBatch(self._clock(), list(self._mirror.events())))
        elif len(request) == 8:
            start = int.from_bytes(request, "big")
            for number, payload in list(self._buffer):
                if number >= start:
                    yield b"", number.to_bytes(8, "big"), payload
            yield b"", NONE, b""
        else:
            log.warning("kv_replay_request_unreadable bytes=%d", len(request))


def _bind(socket: "zmq.Socket[Any]", endpoint: str) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, SEND_BUFFER)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise SettingsError(f"cannot bind KV events to {endpoint}: {error}") from error
