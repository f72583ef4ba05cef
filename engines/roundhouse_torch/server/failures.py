"""Errors as vLLM words them: ``{"error": {"message", "type", "param", "code"}}``."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from roundhouse_torch.errors import Busy, EngineDied, EngineError, RequestError

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def error_body(error: EngineError) -> bytes:
    if isinstance(error, RequestError):
        fields = {"message": str(error), "type": error.kind, "param": error.param, "code": error.status}
    else:
        fields = {"message": str(error), "type": "InternalServerError", "param": None, "code": 500}
    return msgspec.json.encode({"error": fields})


def error_event(error: EngineError) -> bytes:
    return b"data: " + error_body(error) + b"\n\n"


def error_response(error: EngineError) -> web.Response:
    status = error.status if isinstance(error, RequestError) else 500
    headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, Busy) else None
    return web.Response(status=status, body=error_body(error), content_type="application/json", headers=headers)


@web.middleware
async def report_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Everything that a handler raises becomes a response; only a client that left gets none."""
    try:
        return await handler(request)
    except (RequestError, EngineDied) as error:
        return error_response(error)
    except web.HTTPRequestEntityTooLarge as error:
        return error_response(TooLarge(error.text or "the body is too large"))
    except web.HTTPException as error:
        body = msgspec.json.encode({"detail": error.reason})
        headers = {name: value for name, value in error.headers.items() if name.lower() == "allow"}
        return web.Response(status=error.status, body=body, content_type="application/json", headers=headers)
    except (asyncio.CancelledError, ConnectionResetError):
        raise
    except Exception:
        log.exception("request_failed path=%s", request.path)
        return error_response(EngineError("internal error"))


class TooLarge(RequestError):
    status = 413
    kind = "RequestEntityTooLarge"
