"""The `/v1` side of a gateway: accepts connections, answers or starts exchanges, and keeps time for all of them.

Everything here runs on one event loop and in callbacks; the only task is `run`, which refreshes the fleet ten times a
second, checks deadlines twice a second and shows by ``heartbeat`` that the loop is alive.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from random import Random
from typing import Final
from urllib.parse import unquote_to_bytes

import orjson

from roundhouse_gateway.api_keys import ApiKeys
from roundhouse_gateway.bookings import Booking
from roundhouse_gateway.client_connection import ClientConnection
from roundhouse_gateway.client_request import ClientHead, ClientRequest
from roundhouse_gateway.counts import Metrics
from roundhouse_gateway.errors import ApiError
from roundhouse_gateway.exchange import Exchange
from roundhouse_gateway.fleet import Fleet, Service
from roundhouse_gateway.heads import HeadCache
from roundhouse_gateway.journal import Journal, Record
from roundhouse_gateway.replica import Replica
from roundhouse_gateway.replies import error_reply, json_reply
from roundhouse_gateway.request_body import RequestBody, read_body
from roundhouse_gateway.retry_budget import RetryBudget
from roundhouse_gateway.router import Route
from roundhouse_gateway.settings import Settings
from roundhouse_gateway.sockets import Listener, of_running_loop
from roundhouse_gateway.spot_check import EVERY, SpotCheck, check_payload

log = logging.getLogger(__name__)

REFRESH_S: Final = 0.1
CHECK_S: Final = 0.5
FLUSH_S: Final = 1.0
PAUSE_AFTER_BUG_S: Final = 1.0

_INFERENCE: Final = {b"/v1/chat/completions": "/v1/chat/completions", b"/v1/completions": "/v1/completions"}
_MODELS: Final = b"/v1/models"
_LOW: Final = 0xFFFFFFFF


class DataPlane:
    """``incarnation`` is this process's u64 name; request ids begin with its upper 32 bits."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        incarnation: int,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Random,
        keys: ApiKeys | None = None,
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.limits = settings.limits
        self.fleet = fleet
        self.incarnation = incarnation
        self.clock = clock
        self.wall_clock = wall_clock
        self._random = random
        self.metrics = Metrics()
        self.journal = Journal()
        self.retries = RetryBudget(clock())
        self.connections: set[ClientConnection] = set()
        self.exchanges: set[Exchange] = set()
        self.draining = False
        self.heartbeat = clock()
        self.held_bytes = 0
        self.check_every = EVERY
        self.pause_after_bug_s = PAUSE_AFTER_BUG_S
        self.heads: HeadCache[ClientHead] = HeadCache()
        self._count = 0
        self._spot_checks: set[SpotCheck] = set()
        self._listener: Listener | None = None
        self._no_exchange = asyncio.Event()
        self._no_connection = asyncio.Event()

    # -- life

    @property
    def ready(self) -> bool:
        return self.fleet.ready and self._listener is not None and not self.draining

    def listen(self, sock: socket.socket) -> None:
        self.fleet.refresh(self.clock())
        self._listener = Listener(of_running_loop(), sock, lambda: ClientConnection(self))

    async def run(self) -> None:
        """Keep time until cancelled."""
        checked = 0.0
        while True:
            now = self.clock()
            self.heartbeat = now
            try:
                self.fleet.refresh(now)
                self.metrics.settle()
                if now - checked >= CHECK_S:
                    checked = now
                    self._check(now)
            except Exception:  # a bug that one service or request meets must not end all others
                log.exception("tick_failed")
                await asyncio.sleep(self.pause_after_bug_s)
            await asyncio.sleep(REFRESH_S)

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, let what runs come to its end, then end it; afterwards nothing is in flight."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        if self.exchanges:
            log.info("draining in_flight=%d timeout_s=%g", len(self.exchanges), timeout_s)
            if not await _within(timeout_s, self._no_exchange):
                log.warning("drain_timeout in_flight=%d", len(self.exchanges))
        for exchange in list(self.exchanges):
            exchange.shut_down()
        if self.connections:
            await _within(FLUSH_S, self._no_connection)
        for connection in list(self.connections):
            connection.abort()
        for check in list(self._spot_checks):
            await check.close()
        await self.fleet.close()

    def _check(self, now: float) -> None:
        for connection in list(self.connections):
            connection.check(now)
        for exchange in list(self.exchanges):
            exchange.check(now)
        for check in list(self._spot_checks):
            check.check(now)
        self.fleet.check(now)

    # -- requests

    def serve(self, request: ClientRequest, connection: ClientConnection) -> None:
        number = self._next_number()
        try:
            self._serve(request, connection, number)
        except ApiError as error:
            self._refuse(error, connection, number, request)

    def refuse(self, error: ApiError, connection: ClientConnection) -> None:
        self._refuse(error, connection, self._next_number(), None)

    def leave(self, exchange: Exchange, record: Record) -> None:
        self.exchanges.discard(exchange)
        self.journal.add(record)
        self.metrics.done(record)
        if self.draining and not self.exchanges:
            self._no_exchange.set()

    def opened(self, connection: ClientConnection) -> None:
        self.connections.add(connection)

    def closed(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)
        if self.draining and not self.connections:
            self._no_connection.set()

    def find(self, number: int) -> Record | None:
        """A request by its id, whether over or not."""
        return self.journal.find(number) or next((e.record() for e in self.exchanges if e.number == number), None)

    def _serve(self, request: ClientRequest, connection: ClientConnection, number: int) -> None:
        if self.draining:
            raise ApiError(503, "shutting_down", "The gateway is shutting down.", retry_after_s=1, close=True)
        if self.keys is not None:
            self.keys.admit(request.head)
        target = request.head.target
        path = _INFERENCE.get(target) or _INFERENCE.get(_path(target))
        if path is not None:
            _allow(request, b"POST")
            self._infer(request, connection, number, path)
        else:
            _allow_models(request, _path(target))
            self._answer(self._models(_path(target)), request, connection, number)

    def _infer(self, request: ClientRequest, connection: ClientConnection, number: int, path: str) -> None:
        if len(self.exchanges) >= self.limits.in_flight:
            raise ApiError(503, "overloaded", "The gateway has too many requests in flight.", retry_after_s=1)
        body = read_body(request.body)
        service = self._service(body.model)
        if not service.control_fields.isdisjoint(body.fields):
            name = next(name for name in body.fields if name in service.control_fields)
            raise ApiError(400, "control_field", f"'{name}' steers the engine and is not for clients.", param=name)
        now = self.clock()
        route = Route(service, body.fields, path, self._random)
        ranking = route.rank(now)
        if not ranking:
            raise ApiError(503, "no_replica", f"No replica of '{body.model}' is ready.", retry_after_s=5)
        booking = Booking(service, number, now, body.streams)
        exchange = Exchange(self, connection, request, body, route, booking)
        self.exchanges.add(exchange)
        connection.exchange = exchange
        exchange.start(ranking, now)
        if number % self.check_every == 0:
            self._spot_check(exchange.replica, service, body, path)

    def _spot_check(self, replica: Replica, service: Service, body: RequestBody, path: str) -> None:
        renderer = service.renderer(replica.digest) if replica.predictable else None
        payload = check_payload(renderer, body.fields, path) if renderer is not None else None
        if payload is not None:
            check = SpotCheck(replica, self.clock, self._spot_checked)
            self._spot_checks.add(check)
            check.start(payload)

    def _spot_checked(self, check: SpotCheck, result: str) -> None:
        self._spot_checks.discard(check)
        check.retire()
        self.metrics.spot_checks[result] += 1
        if result == "inexact":
            log.warning("rendering_inexact replica=%s", check.replica)

    def _service(self, model: str) -> Service:
        service = self.fleet.resolve(model)
        if service is not None:
            return service
        self._need_catalogue()
        raise ApiError(404, "model_not_found", f"The model '{model[:200]}' does not exist.", param="model")

    def _need_catalogue(self) -> None:
        if not self.fleet.ready:
            raise ApiError(503, "no_replica", "The gateway does not know yet which models exist.", retry_after_s=2)

    def _models(self, path: bytes) -> dict[str, object]:
        """All models, or the one that the path names."""
        if path != _MODELS:
            name = unquote_to_bytes(path[len(_MODELS) + 1 :]).decode("utf-8", "replace")
            return _model_object(name, self._service(name))
        self._need_catalogue()
        services = [s for s in self.fleet.services.values() if self.fleet.resolve(s.model_id) is s]
        return {"object": "list", "data": [_model_object(s.model_id, s) for s in services]}

    def _answer(
        self, body: dict[str, object], request: ClientRequest, connection: ClientConnection, number: int
    ) -> None:
        keep_alive = request.head.keep_alive and not connection.closing
        headers = [b"x-request-id: %016x\r\n" % number]
        self.metrics.requests["", "200"] += 1
        connection.reply(json_reply(200, orjson.dumps(body), headers, keep_alive=keep_alive), keep_alive)

    def _refuse(
        self, error: ApiError, connection: ClientConnection, number: int, request: ClientRequest | None
    ) -> None:
        keep_alive = request is not None and request.head.keep_alive and not error.close and not connection.closing
        self.metrics.requests["", str(error.status)] += 1
        self.metrics.errors[error.code] += 1
        head_only = request is not None and request.head.method == b"HEAD"
        reply = error_reply(error, request_id=b"%016x" % number, keep_alive=keep_alive, head_only=head_only)
        connection.reply(reply, keep_alive)

    def _next_number(self) -> int:
        self._count = (self._count + 1) & _LOW
        return (self.incarnation & ~_LOW) | self._count


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _path(target: bytes) -> bytes:
    """The path of a request target, without query; an absolute target's path too."""
    if not target.startswith(b"/"):
        _, separator, rest = target.partition(b"://")
        target = b"/" + rest.partition(b"/")[2] if separator else target
    return target.partition(b"?")[0] if b"?" in target else target


def _allow(request: ClientRequest, method: bytes) -> None:
    if request.head.method != method:
        used, allowed = request.head.method.decode("ascii", "replace"), method.decode()
        raise ApiError(405, "invalid_request", f"{used} is not allowed here; use {allowed}.", allow=allowed)


def _allow_models(request: ClientRequest, path: bytes) -> None:
    if path != _MODELS and not path.startswith(_MODELS + b"/"):
        raise ApiError(404, "invalid_request", f"There is no {path.decode('ascii', 'replace')[:200]} here.")
    _allow(request, b"GET")


def _model_object(name: str, service: Service) -> dict[str, object]:
    return {"id": name, "object": "model", "created": service.view.entry.created, "owned_by": "roundhouse"}
