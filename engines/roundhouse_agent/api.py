"""The agent's HTTP API (docs/contracts.md §8). No answer waits for Redis."""

import json
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from roundhouse_engines.errors import ProbeError
from roundhouse_kv.errors import KvError
from roundhouse_kv.records import Progress, encode_record

from roundhouse_agent.engine_watch import EngineWatch
from roundhouse_agent.lease_publisher import LeasePublisher
from roundhouse_agent.replica import Engine, Replica
from roundhouse_agent.session import Comparison

log = logging.getLogger(__name__)

CONTINUATION_S: Final = 15.0  # what gateways get, past the deadline, to carry streams on elsewhere
MISMATCH: Final = "the engine's tokens spell another prompt than was rendered"
MAX_BODY_BYTES: Final = 64 << 20
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class Api:
    """``drain_seconds``: deadline of a drain that names none. ``now_ms`` gives Unix milliseconds."""

    def __init__(
        self,
        replica: Replica,
        watch: EngineWatch,
        leases: LeasePublisher,
        registry: CollectorRegistry,
        drain_seconds: float,
        now_ms: Callable[[], int],
    ) -> None:
        self._replica = replica
        self._watch = watch
        self._leases = leases
        self._registry = registry
        self._drain_ms = round(drain_seconds * 1000)
        self._now_ms = now_ms

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.get("/live", self._live),
                web.get("/ready", self._ready),
                web.get("/status", self._status),
                web.post("/drain", self._start_drain),
                web.delete("/drain", self._cancel_drain),
                web.get("/drain", self._wait_drain),
                web.post("/progress", self._progress),
                web.post("/check", self._check),
                web.get("/metrics", self._metrics),
            ]
        )
        return app

    async def _live(self, request: web.Request) -> web.Response:
        return _answer({})

    async def _ready(self, request: web.Request) -> web.Response:
        replica = self._replica
        if replica.serving and not replica.stopped:
            return _answer({"state": "ready"})
        return _answer({"state": replica.state, "message": replica.message}, status=503)

    async def _status(self, request: web.Request) -> web.Response:
        return web.Response(body=encode_record(self._replica.lease()), content_type="application/json")

    async def _start_drain(self, request: web.Request) -> web.Response:
        deadline = self._now_ms() + self._drain_ms
        if await request.read():
            body = await _object(request)
            value = body.get("deadlineMs", deadline)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                return _refuse("deadlineMs is not a Unix time in milliseconds")
            deadline = value
        self._begin_drain(deadline)
        return self._drain_state()

    async def _cancel_drain(self, request: web.Request) -> web.Response:
        if not self._replica.drain.cancel():
            return _answer({"state": "drained", "error": "already drained"}, status=409)
        self._replica.changed.set()
        return _answer({"state": self._replica.state})

    async def _wait_drain(self, request: web.Request) -> web.Response:
        if request.query.get("wait") != "1":
            return self._drain_state()
        self._begin_drain(self._now_ms() + self._drain_ms)
        while not self._wait_is_over():
            await self._replica.next_look()
        return self._drain_state()

    async def _progress(self, request: web.Request) -> web.Response:
        try:
            progress = msgspec.json.decode(await request.read(), type=Progress)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _refuse(f"progress: {error}")
        self._replica.progress = progress
        self._replica.changed.set()
        return web.Response(status=204)

    async def _check(self, request: web.Request) -> web.Response:
        body = await _object(request)
        rendered, asked = body.get("rendered"), body.get("body")
        if not isinstance(rendered, str) or not isinstance(asked, dict):
            return _refuse("a check has a text `rendered` and an object `body`")
        if (session := self._watch.session) is None or session.prepared is None:
            return _answer({"error": "the engine is not ready"}, status=503)
        try:
            found = await session.compare(rendered, asked)
        except (ProbeError, KvError, KeyError) as error:
            return _answer({"error": str(error)}, status=502)
        if found is Comparison.EQUAL:
            return _answer({"exact": True})
        if found is Comparison.UNEQUAL and (profile := session.distrust(f"live check: {MISMATCH}")) is not None:
            log.warning("profile_inexact", extra={"reason": profile.reason})
            self._leases.profile, self._replica.profile = profile, profile.digest
            self._replica.changed.set()
        return _answer({"exact": False, "reason": MISMATCH})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"content-type": _TEXT})

    def _begin_drain(self, deadline_ms: int) -> None:
        if not self._replica.drain.active:
            log.info("drain_started", extra={"remaining_ms": deadline_ms - self._now_ms()})
        self._replica.drain.start(deadline_ms)
        self._replica.changed.set()

    def _drain_state(self) -> web.Response:
        drain = self._replica.drain
        if drain.drained:
            return _answer({"state": "drained"})
        return _answer({"state": self._replica.state, "remainingMs": drain.remaining_ms(self._now_ms())})

    def _wait_is_over(self) -> bool:
        """Drained, cancelled, or nothing to wait for: the engine is dead or hung, or streams outlive every deadline."""
        drain = self._replica.drain
        if drain.drained or drain.deadline_ms is None or self._replica.hung:
            return True
        if self._replica.engine in (Engine.ABSENT, Engine.SILENT):
            return True
        return self._now_ms() > drain.deadline_ms + CONTINUATION_S * 1000


def _answer(fields: dict[str, Any], *, status: int = 200) -> web.Response:
    return web.json_response({"v": 1, **fields}, status=status)


def _refuse(reason: str) -> web.Response:
    return _answer({"error": reason}, status=400)


async def _object(request: web.Request) -> dict[str, Any]:
    """The request's JSON object; anything else is answered with 400."""
    try:
        value = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise _bad_request(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _bad_request("a JSON object was expected")
    return value


def _bad_request(reason: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=json.dumps({"v": 1, "error": reason}), content_type="application/json")
