"""Health, metrics and the admin API: FastAPI on a thread and loop of its own, so that probes and pages never wait for a
busy data plane, and the data plane never for them.

Whatever an endpoint shows is read on the data plane's loop (`LoopDoor.ask`) and rendered here. ``/healthz`` asks
nothing: it looks at the heartbeat, so a stuck loop is seen.
"""

import asyncio
import concurrent.futures
import logging
import re
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from roundhouse_gateway.admin_views import plane_gauges, replicas_json
from roundhouse_gateway.data_plane import DataPlane
from roundhouse_gateway.errors import NotServing
from roundhouse_gateway.metrics import Gauge, render_page

log = logging.getLogger(__name__)

T = TypeVar("T")

HEARTBEAT_S = 3.0
ASK_TIMEOUT_S = 2.0


class LoopDoor:
    """Runs a look at the data plane's state on its own loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def ask(self, look: Callable[[], T]) -> T:
        """Raises `NotServing` when the loop does not answer in time."""
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(look())
                except Exception as error:
                    answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await asyncio.wrap_future(answer)
        except (TimeoutError, RuntimeError) as error:
            raise NotServing("the data plane's loop does not answer") from error


def build_app(
    plane: DataPlane,
    door: LoopDoor,
    *,
    catalogue: Callable[[], dict[str, Any]],
    gauges: Callable[[], list[Gauge]],
) -> FastAPI:
    app = FastAPI(title="Roundhouse gateway admin", docs_url=None, redoc_url=None, openapi_url=None)
    _add_probes(app, plane)

    @app.exception_handler(NotServing)
    async def not_serving(_request: object, error: Exception) -> JSONResponse:
        return JSONResponse({"v": 1, "message": str(error)}, 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        shown = await door.ask(lambda: plane_gauges(plane) + gauges())
        return Response(render_page(plane.metrics, shown), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/admin/replicas")
    async def replicas() -> JSONResponse:
        return JSONResponse(await door.ask(lambda: replicas_json(plane)))

    @app.get("/admin/requests/{request_id}")
    async def request(request_id: str) -> JSONResponse:
        number = int(request_id, 16) if re.fullmatch("[0-9a-f]{16}", request_id) else -1
        record = await door.ask(lambda: plane.find(number))
        if record is None:
            return JSONResponse({"v": 1, "message": f"request {request_id} is not among the last ones"}, 404)
        return JSONResponse(record.as_json())

    @app.get("/admin/catalogue")
    async def show_catalogue() -> JSONResponse:
        return JSONResponse(await door.ask(catalogue))

    return app


def _add_probes(app: FastAPI, plane: DataPlane) -> None:
    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        silent_s = plane.clock() - plane.heartbeat
        alive = silent_s < HEARTBEAT_S
        return JSONResponse({"v": 1, "alive": alive, "silentSeconds": round(silent_s, 3)}, 200 if alive else 503)

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        if plane.ready:
            return JSONResponse({"v": 1, "ready": True})
        message = "shutting down" if plane.draining else "no catalogue yet"
        return JSONResponse({"v": 1, "ready": False, "message": message}, 503)


class _Server(uvicorn.Server):
    """Without uvicorn's ten ticks a second, which would be a good part of what an idle gateway does."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.on_tick(0)
        if not self.should_exit:
            await self._told.wait()

    def tell_to_stop(self) -> None:
        """From another thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._told.set)


class AdminServer:
    """uvicorn in a daemon thread, on a socket that is already bound."""

    def __init__(self, app: FastAPI, sock: socket.socket) -> None:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1, date_header=False
        )
        self._server = _Server(config)
        self._sock = sock
        self._thread = threading.Thread(target=self._run, name="admin", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._sock]))

    def stop(self) -> None:
        self._server.tell_to_stop()
        self._thread.join(timeout=3)
        if self._thread.is_alive():
            log.warning("admin_thread_left_behind")
