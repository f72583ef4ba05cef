"""Routes."""

from aiohttp import web

from roundhouse_torch import __version__
from roundhouse_torch.server.engine_client import EngineClient
from roundhouse_torch.server.metrics import Metrics
from roundhouse_torch.server.middleware import identify, report_errors, send_identity
from roundhouse_torch.server.service import Service

MAX_BODY = 64 << 20


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
