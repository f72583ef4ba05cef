"""ZMQ sockets for KV events: PUB for what happens, ROUTER for replay and snapshot.

A DEALER asks ``[b"", start seq]`` and gets ``[b"", topic, seq, payload]`` for each buffered batch from there on, then
``[b"", b"", ff×8, b""]``; or it asks ``[b"", b"snapshot"]`` and gets ``[b"", b"snapshot", seq, payload]``, a batch that
stores every block present after ``seq`` (ff×8, −1, while nothing was published). Sequence numbers are 8 bytes, big
endian, signed.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import zmq
import zmq.asyncio

from roundhouse_sim.cache import Change
from roundhouse_sim.errors import BadSettings
from roundhouse_sim.kv_events import EventLog

TOPIC: Final = b""
SNAPSHOT: Final = b"snapshot"
END: Final = b"\xff" * 8
PUBLISH_QUEUE: Final = 100_000

log = logging.getLogger(__name__)


class KvSockets:
    """Both sockets of one engine; either endpoint may be empty. ``serve`` answers requests until cancelled."""

    def __init__(self, events_log: EventLog, events: str, replay: str) -> None:
        self._log = events_log
        self._context = zmq.Context()
        self._async_context = zmq.asyncio.Context(self._context)
        self._publisher = self._context.socket(zmq.PUB) if events else None
        if self._publisher is not None:
            _bind(self._publisher, events, PUBLISH_QUEUE)
        self._router = self._async_context.socket(zmq.ROUTER) if replay else None
        if self._router is not None:
            _bind(self._router, replay, 0)

    def publish(self, changes: Sequence[Change]) -> None:
        """Never blocks: a subscriber that is too slow loses batches and sees a gap."""
        payload = self._log.record(changes, time.time())
        if self._publisher is not None:
            self._publisher.send_multipart([TOPIC, _seq(self._log.seq), payload])

    async def serve(self) -> None:
        if self._router is None:
            return
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3 or frames[1] != b"":
                log.warning("kv_replay_malformed frames=%d", len(frames))
                continue
            for answer in self._answers(frames[2]):
                await self._router.send_multipart([frames[0], b"", *answer])
                await asyncio.sleep(0)

    def close(self) -> None:
        for socket in (self._publisher, self._router):
            if socket is not None:
                socket.close(linger=0)
        self._context.term()

    def _answers(self, request: bytes) -> list[tuple[bytes, ...]]:
        if request == SNAPSHOT:
            return [(SNAPSHOT, _seq(self._log.seq), self._log.snapshot(time.time()))]
        if len(request) != 8:
            log.warning("kv_replay_malformed bytes=%d", len(request))
            return []
        batches = self._log.since(int.from_bytes(request, "big"))
        return [*((TOPIC, _seq(seq), payload) for seq, payload in batches), (b"", END, b"")]


def _bind(socket: "zmq.Socket[Any]", endpoint: str, queue: int) -> None:
    """``queue``: most messages kept per peer that reads too slowly, 0 = all."""
    socket.setsockopt(zmq.SNDHWM, queue)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise BadSettings(f"cannot bind {endpoint}: {error}") from error


def _seq(seq: int) -> bytes:
    return seq.to_bytes(8, "big", signed=True)
