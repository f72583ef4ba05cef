"""HTTP for kubelets and Prometheus: ``/healthz``, ``/readyz``, ``/metrics``."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


@asynccontextmanager
async def serve_probes(
    port: int, *, alive: Callable[[], str], registry: CollectorRegistry, host: str = "0.0.0.0"
) -> AsyncIterator[int]:
    """``alive`` says what is wrong, nothing while all is well. A standby is ready, too. Gives the port."""

    async def healthz(request: web.Request) -> web.Response:
        wrong = alive()
        return web.Response(text=wrong or "ok", status=503 if wrong else 200)

    async def readyz(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
