"""Request ids: the client's ``X-Request-Id`` is kept, in the response's header and in its ``id``."""

import re
import uuid

from aiohttp import web

from roundhouse_torch.server.failures import Handler

_HEADER = "X-Request-Id"
_PLAIN = re.compile(r"[\x21-\x7e]{1,256}")
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    given = request.headers.get(_HEADER, "")
    request[REQUEST_ID] = given if _PLAIN.fullmatch(given) else uuid.uuid4().hex
    return await handler(request)


async def send_identity(request: web.Request, response: web.StreamResponse) -> None:
    """For ``on_response_prepare``: streams have sent their headers by the time a middleware sees them."""
    if REQUEST_ID in request:
        response.headers[_HEADER] = request[REQUEST_ID]
