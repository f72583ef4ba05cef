"""The server's routes and life: wait for the model, listen, and stop in order.

While the model loads, the port is bound but not listened on, so probes are refused. On SIGTERM (or SIGINT) new
requests get 503, running ones go on until ``--shutdown-timeout``; then their streams end with finish_reason
``abort``. A second signal skips the wait. When the engine process ends, everything in flight fails and so does the
server.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from roundhouse_torch import __version__
from roundhouse_torch.events.publisher import EventPublisher
from roundhouse_torch.messages.link import ServerEnd
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.server.engine_client import EngineClient
from roundhouse_torch.server.metrics import Metrics
from roundhouse_torch.server.middleware import identify, report_errors, send_identity
from roundhouse_torch.server.prompts import Prompts
from roundhouse_torch.server.service import Service
from roundhouse_torch.settings import EngineSettings

log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
MAX_BODY = 64 << 20


async def run_server(settings: EngineSettings, listener: socket.socket, link: socket.socket) -> None:
    """Returns after a clean stop. Raises `EngineDied`, `ModelError`, `SettingsError`."""
    began = time.monotonic()
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    config = ModelConfig.read(settings.model)
    metrics = Metrics(settings.names[0], config.max_position)
    async with AsyncExitStack() as stack:
        publisher = await _publisher(settings, stack)
        engine_link = await ServerEnd.open(link)
        stack.callback(engine_link.close)
        client = EngineClient(
            engine_link, metrics, publisher,
            max_waiting=settings.max_num_queued_reqs, health_timeout_s=settings.health_timeout,
        )  # fmt: skip
        engine = await stack.enter_async_context(_task(client.run()))
        stop = await stack.enter_async_context(_task(signals.get()))
        prompts = Prompts(settings.model, config.vocab_size)
        await asyncio.wait((client.loaded, stop), return_when=asyncio.FIRST_COMPLETED)
        if not client.loaded.done():
            return
        loaded = await client.loaded
        metrics.configured(loaded, prefix_caching=settings.enable_prefix_caching)
        service = Service(client, prompts, config, loaded, settings)
        async with _listening(make_app(service, client, metrics), listener):
            address = "{}:{}".format(*listener.getsockname()[:2])
            log.info("ready address=%s seconds=%.1f blocks=%d", address, time.monotonic() - began, loaded.blocks)
            await asyncio.wait((engine, stop), return_when=asyncio.FIRST_COMPLETED)
            if not engine.done():
                await _drain(service, client, signals, settings.shutdown_timeout)
        if engine.done():
            await engine


async def _drain(service: Service, client: EngineClient, signals: asyncio.Queue[int], timeout_s: float) -> None:
    service.accepting = False
    log.info("draining running=%d", client.in_flight)
    async with _task(client.idle.wait()) as idle, _task(signals.get()) as hurry:
        await asyncio.wait((idle, hurry), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if client.in_flight:
        log.warning("drain_cut aborted=%d", client.in_flight)
        client.abort_all()


@asynccontextmanager
async def _task(work: Coroutine[Any, Any, Any]) -> "AsyncIterator[asyncio.Task[Any]]":
    """A task that does not outlive the block; what it raises is seen by whoever awaits it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(BaseException):
            await task


async def _publisher(settings: EngineSettings, stack: AsyncExitStack) -> EventPublisher | None:
    if not settings.kv_events:
        return None
    publisher = EventPublisher(settings.kv_events, settings.kv_replay)
    stack.callback(publisher.close)
    await stack.enter_async_context(_task(publisher.serve_requests()))
    return publisher


@asynccontextmanager
async def _listening(app: web.Application, listener: socket.socket) -> AsyncIterator[None]:
    """Leaving lets handlers finish for `CLOSE_SECONDS`. A client that goes away cancels its handler."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=CLOSE_SECONDS)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield
    finally:
        await runner.cleanup()


def make_app(service: Service, client: EngineClient, metrics: Metrics) -> web.Application:
    app = web.Application(middlewares=(identify, report_errors), client_max_size=MAX_BODY)
    app.on_response_prepare.append(send_identity)

    async def health(_request: web.Request) -> web.Response:
        return web.Response(status=200 if client.healthy else 503)

    async def version(_request: web.Request) -> web.Response:
        return web.json_response({"version": __version__})

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers={"Content-Type": metrics.content_type})

    app.add_routes(
        (
            web.post("/v1/chat/completions", service.chat),
            web.post("/v1/completions", service.completion),
            web.post("/v1/embeddings", service.embeddings),
            web.get("/v1/models", service.models),
            web.post("/v1/load_lora_adapter", service.load_adapter),
            web.post("/v1/unload_lora_adapter", service.unload_adapter),
            web.post("/tokenize", service.tokenize),
            web.post("/detokenize", service.detokenize),
            web.post("/reset_prefix_cache", service.reset_prefix_cache),
            web.get("/health", health),
            web.get("/version", version),
            web.get("/metrics", page),
        )
    )
    return app
