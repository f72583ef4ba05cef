"""Streams are, field by field, what vLLM 0.32 sends (recorded)."""

import json
import re

import aiohttp
import pytest

from tests.integration.sim.conftest import Sim

pytestmark = pytest.mark.integration

CHAT_STREAM = (
    'data: {"id":"chatcmpl-I","object":"chat.completion.chunk","created":N,"model":"sim","choices":[{"index":0,"delta":'
    '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}',
    'data: {"id":"chatcmpl-I","object":"chat.completion.chunk","created":N,"model":"sim","choices":[{"index":0,"delta":'
    '{"content":"c"},"logprobs":null,"finish_reason":null,"token_ids":null}]}',
    'data: {"id":"chatcmpl-I","object":"chat.completion.chunk","created":N,"model":"sim","choices":[{"index":0,"delta":'
    '{"content":"c"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}]}',
    'data: {"id":"chatcmpl-I","object":"chat.completion.chunk","created":N,"model":"sim","choices":[],"usage":'
    '{"prompt_tokens":24,"total_tokens":26,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0,'
    '"created_cache_tokens":16}},"system_fingerprint":"roundhouse-sim"}',
    "data: [DONE]",
)
COMPLETION_STREAM = (
    'data: {"id":"cmpl-I","object":"text_completion","created":N,"model":"sim","choices":[{"index":0,"text":"c",'
    '"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":[104,105],"token_ids":[T]}]}',
    'data: {"id":"cmpl-I","object":"text_completion","created":N,"model":"sim","choices":[{"index":0,"text":"c",'
    '"logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":[T]}]}',
    'data: {"id":"cmpl-I","object":"text_completion","created":N,"model":"sim","choices":[],"usage":{"prompt_tokens":2,'
    '"total_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}},"system_fingerprint":'
    '"roundhouse-sim"}',
    "data: [DONE]",
)


async def raw(sim: Sim, path: str, body: dict[str, object]) -> tuple[str, tuple[str, ...]]:
    """Content type and events, with ids, stamps and texts made equal."""
    async with aiohttp.ClientSession() as session, session.post(sim.url + path, json=body) as response:
        text = await response.text()
    text = re.sub(r'"created":\d+', '"created":N', text)
    text = re.sub(r'"id":"(chatcmpl|cmpl)-[^"]*"', r'"id":"\1-I"', text)
    text = re.sub(r'"(content|text)":"[^"]"', r'"\1":"c"', text)
    text = re.sub(r'"token_ids":\[\d+\]', '"token_ids":[T]', text)
    assert text.endswith("\n\n")
    return response.headers["content-type"], tuple(text[:-2].split("\n\n"))


async def test_chat_stream(sim: Sim) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "stream": True}
    kind, events = await raw(sim, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert (kind, events) == ("text/event-stream; charset=utf-8", CHAT_STREAM)


async def test_completion_stream(sim: Sim) -> None:
    body = {"prompt": "hi", "max_tokens": 2, "stream": True, "return_token_ids": True}
    _, events = await raw(sim, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert events == COMPLETION_STREAM


async def test_a_whole_chat_has_vllms_fields(sim: Sim) -> None:
    body = {"messages": [{"role": "user", "content": "whole"}], "max_tokens": 2}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{sim.url}/v1/chat/completions", json=body) as response,
    ):
        answer = json.loads(await response.text())
    assert list(answer) == [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "prompt_logprobs",
        "prompt_token_ids", "prompt_text", "kv_transfer_params",
    ]  # fmt: skip
    assert list(answer["choices"][0]) == [
        "index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids",
    ]  # fmt: skip
    assert list(answer["usage"]) == [
        "prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details",
    ]  # fmt: skip
