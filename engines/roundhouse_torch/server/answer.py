"""Run a generation and write it out, streamed or whole."""

from collections.abc import Sequence
from contextlib import aclosing

from aiohttp import web

from roundhouse_torch.errors import EngineDied
from roundhouse_torch.server.failures import error_event
from roundhouse_torch.server.generation import Generation
from roundhouse_torch.server.requests import Plan
from roundhouse_torch.server.shapes import DONE, Shape, WholeChoice

SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


async def answer(
    request: web.Request, generation: Generation, shape: Shape, plan: Plan, echo: Sequence[str]
) -> web.StreamResponse:
    """``echo``: text to put before each choice's own, or nothing.

    Leaving early, for whatever reason, aborts what still runs.
    """
    if plan.stream:
        return await _stream(request, generation, shape, plan, echo)
    return await _whole(generation, shape, plan, echo)


async def _whole(generation: Generation, shape: Shape, plan: Plan, echo: Sequence[str]) -> web.Response:
    choices = [WholeChoice(choice.index, echo[choice.index] if echo else "") for choice in generation.choices]
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            choices[delta.index].add(delta)
    prompts = [prompt.tokens for prompt in generation.prompts] if plan.return_token_ids else None
    return web.Response(body=shape.whole(choices, generation.usage, prompts), content_type="application/json")


async def _stream(
    request: web.Request, generation: Generation, shape: Shape, plan: Plan, echo: Sequence[str]
) -> web.StreamResponse:
    """Headers go out with the first event: until then the request can still be refused, or tried elsewhere by a
    gateway.
    """
    response = web.StreamResponse(headers=SSE_HEADERS)
    begun: set[int] = set()
    async with aclosing(generation.deltas()) as deltas:
        try:
            async for delta in deltas:
                usage = generation.usage if plan.continuous_usage else None
                data, prompt_tokens = b"", None
                if delta.index not in begun:
                    if not begun:
                        await response.prepare(request)
                    begun.add(delta.index)
                    prompt_tokens = generation.prompts[delta.index // plan.n].tokens if plan.return_token_ids else None
                    data = shape.opening(delta.index, prompt_tokens, usage)
                    if echo:
                        delta = delta.after(echo[delta.index])
                await response.write(data + shape.delta(delta, prompt_tokens, usage))
        except EngineDied as error:
            if not begun:
                raise
            await response.write(error_event(error))
            await response.write_eof()
            return response
    tail = shape.usage(generation.usage) if plan.include_usage else b""
    await response.write(tail + DONE)
    await response.write_eof()
    return response
