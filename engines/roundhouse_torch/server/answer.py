"""Run a generation and write it out, streamed or whole."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

from aiohttp import web

from roundhouse_torch.errors import EngineDied, RequestError
from roundhouse_torch.server.generation import Delta, Generation, joined
from roundhouse_torch.server.middleware import error_body
from roundhouse_torch.server.requests import StreamOptions
from roundhouse_torch.server.shapes import DONE, Shape

SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


async def answer(
    request: web.Request, generation: Generation, shape: Shape, *, keep_alive_s: float = 0.0
) -> web.StreamResponse:
    """Leaving early, for whatever reason, aborts what still runs."""
    asked = generation.plan.asked
    if asked.stream:
        return await _stream(request, generation, shape, keep_alive_s)
    found: list[list[Delta]] = [[] for _ in generation.choices]
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            found[delta.index].append(delta)
    prompts = [prompt.tokens for prompt in generation.prompts] if asked.return_token_ids else None
    body = shape.whole([joined(gained) for gained in found], generation.usage, prompts)
    return web.Response(body=body, content_type="application/json")


async def _stream(
    request: web.Request, generation: Generation, shape: Shape, keep_alive_s: float
) -> web.StreamResponse:
    """Headers go out with the first event or, after a silence, comment: until then the request can still be refused,
    or tried elsewhere by a gateway.
    """
    asked, stream, begun = generation.plan.asked, EventStream(request), set[int]()
    options = asked.stream_options or StreamOptions()
    async with stream.kept_alive(keep_alive_s), aclosing(generation.deltas()) as deltas:
        try:
            async for delta in deltas:
                usage = generation.usage if options.include_usage and options.continuous_usage_stats else None
                data, prompt = b"", None
                if delta.index not in begun:
                    begun.add(delta.index)
                    prompt = generation.prompt_of(delta.index).tokens if asked.return_token_ids else None
                    data = shape.opening(delta.index, prompt, usage)
                await stream.write(data + shape.delta(delta, prompt, usage))
        except (EngineDied, RequestError) as error:
            if not stream.begun:
                raise
            return await stream.end(b"data: " + error_body(error) + b"\n\n")
        return await stream.end((shape.usage(generation.usage) if options.include_usage else b"") + DONE)


class EventStream:
    """The response, begun by its first bytes."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=SSE_HEADERS)
        self._lock = asyncio.Lock()
        self._spoke = False
        self.begun = False

    async def write(self, data: bytes) -> None:
        if not data:
            return
        self._spoke = True
        async with self._lock:
            if not self.begun:
                await self._response.prepare(self._request)
                self.begun = True
            await self._response.write(data)

    async def end(self, data: bytes) -> web.StreamResponse:
        await self.write(data)
        await self._response.write_eof()
        return self._response

    @asynccontextmanager
    async def kept_alive(self, interval_s: float) -> AsyncIterator[None]:
        """A comment after each ``interval_s`` without an event; 0 sends none."""
        task = asyncio.create_task(self._keep_alive(interval_s)) if interval_s else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, ConnectionError):
                    await task

    async def _keep_alive(self, interval_s: float) -> None:
        while True:
            self._spoke = False
            await asyncio.sleep(interval_s)
            if not self._spoke:
                await self.write(b": keep-alive\n\n")
