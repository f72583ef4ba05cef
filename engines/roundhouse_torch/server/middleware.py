"""Errors as vLLM words them: ``{"error": {"message", "type", "param", "code"}}``; and request ids: the client's
``X-Request-Id`` is kept, in the response's header and in its ``id``.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from roundhouse_torch.errors import Busy, EngineDied, EngineError, RequestError, TooLarge

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HEADER = "X-Request-Id"
_PLAIN = re.compile(r"[\x21-\x7e]{1,256}")
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)


def error_body(error: EngineError) -> bytes:
    """Whatever is not the client's fault is a 500."""
    fault = error if isinstance(error, RequestError) else RequestError(str(error))
    fields = {"message": str(fault), "type": fault.kind, "param": fault.param, "code": fault.status}
    return msgspec.json.encode({"error": fields})


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


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    given = request.headers.get(_HEADER, "")
    request[REQUEST_ID] = given if _PLAIN.fullmatch(given) else uuid.uuid4().hex
    return await handler(request)


async def send_identity(request: web.Request, response: web.StreamResponse) -> None:
    """For ``on_response_prepare``: streams have sent their headers by the time a middleware sees them."""
    if REQUEST_ID in request:
        response.headers[_HEADER] = request[REQUEST_ID]
