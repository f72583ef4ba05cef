"""Requests in flight: admitted up to the queue limit, answered by replies, counted until they are over, drained at the
end."""

import asyncio
import logging
import time
from typing import Final

from roundhouse_sim.bodies import Generate
from roundhouse_sim.engine import Engine
from roundhouse_sim.errors import ApiError
from roundhouse_sim.faults import Fault
from roundhouse_sim.job import Job
from roundhouse_sim.metrics import Metrics
from roundhouse_sim.replies import Reply, StreamReply, WholeReply
from roundhouse_sim.server import Exchange
from roundhouse_sim.settings import Settings
from roundhouse_sim.shapes import ChatShape, CompletionShape

BUSY: Final = ApiError(
    503,
    "Service Unavailable",
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
)
SHUT_DOWN: Final = ApiError(500, "InternalServerError", "cannot schedule new futures after shutdown")

log = logging.getLogger(__name__)


class Inference:
    def __init__(self, settings: Settings, engine: Engine, metrics: Metrics) -> None:
        self._settings = settings
        self._engine = engine
        self._metrics = metrics
        self._replies: set[Reply] = set()
        self._draining = False
        self._empty = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return len(self._replies)

    def admit(self) -> None:
        """Raises `ApiError` while shutting down or when the queue is full."""
        if self._draining:
            raise SHUT_DOWN
        if self._settings.max_queued and len(self._replies) >= self._settings.max_queued:
            self._metrics.rejected["max_num_queued_reqs"] += 1
            raise BUSY

    def answer(self, exchange: Exchange, request: Generate, fault: Fault | None) -> None:
        kind = ChatShape if request.chat else CompletionShape
        request_id = exchange.request_id.decode("latin-1")
        shape = kind(request_id, int(time.time()), request.model, token_ids=request.token_ids)
        reply_kind = StreamReply if request.stream else WholeReply
        reply = reply_kind(exchange, request, shape, self._engine, self._settings, fault, self._ended)
        self._replies.add(reply)
        self._empty.clear()
        reply.start()

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let those in flight finish for ``timeout_s``, then abort the rest."""
        self._draining = True
        if self._replies and timeout_s > 0:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()
            except TimeoutError:
                log.warning("drain_timeout in_flight=%d", len(self._replies))
        for reply in list(self._replies):
            reply.cut()

    def _ended(self, reply: Reply, job: Job | None) -> None:
        if job is not None:
            self._metrics.record(job, self._engine.clock())
            return
        self._replies.discard(reply)
        if not self._replies:
            self._empty.set()
