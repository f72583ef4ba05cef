import asyncio
import json

import pytest
from openai import AsyncOpenAI

from tests.integration.sim.client import CHAT, events, eventually, gauges, get, in_flight, post
from tests.integration.sim.conftest import Sim, StartSim

pytestmark = pytest.mark.integration


def openai(sim: Sim) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0)


async def test_the_openai_client_streams_a_chat(sim: Sim) -> None:
    async with openai(sim) as client:
        stream = await client.chat.completions.create(
            model="sim",
            messages=[{"role": "user", "content": "tell me"}],
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert len(text) == 20
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:-1]] == ["length"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20


async def test_streamed_and_whole_answers_are_equal(sim: Sim) -> None:
    async with openai(sim) as client:
        whole = await client.chat.completions.create(model="sim", messages=[{"role": "user", "content": "same?"}])
        stream = await client.chat.completions.create(
            model="sim", messages=[{"role": "user", "content": "same?"}], stream=True
        )
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(parts) == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"


async def test_a_second_turn_reports_the_first_as_cached(start_sim: StartSim) -> None:
    sim = start_sim("--speedup", "200")
    url = f"{sim.url}/v1/chat/completions"
    messages = [{"role": "system", "content": "rule " * 200}, {"role": "user", "content": "one"}]
    _, first = await post(url, {"messages": messages})
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    messages += [first["choices"][0]["message"] | {}, {"role": "user", "content": "two"}]
    _, second = await post(url, {"messages": messages})
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > first["usage"]["total_tokens"] - 32
    values = await gauges(sim.url)
    assert values["vllm:prefix_cache_hits_total"] == cached
    assert values["vllm:prompt_tokens_total"] == sum(a["usage"]["prompt_tokens"] for a in (first, second))
    assert values["vllm:generation_tokens_total"] == sum(a["usage"]["completion_tokens"] for a in (first, second))


async def test_a_continued_message_gets_exactly_the_rest(sim: Sim) -> None:
    url = f"{sim.url}/v1/chat/completions"
    whole = (await post(url, CHAT | {"max_tokens": 60}))[1]["choices"][0]["message"]["content"]
    begun = [*CHAT["messages"], {"role": "assistant", "content": whole[:23]}]
    options = {"add_generation_prompt": False, "continue_final_message": True, "max_tokens": 37}
    rest = (await post(url, {"messages": begun, **options}))[1]["choices"][0]["message"]["content"]
    assert whole[:23] + rest == whole


async def test_salt_keeps_caches_apart(sim: Sim) -> None:
    url = f"{sim.url}/v1/completions"
    cached = []
    for salt in ("a", "b", "a"):
        _, body = await post(url, {"prompt": "salted prompt " * 20, "max_tokens": 1, "cache_salt": salt})
        cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 272]


async def test_stop_string_ends_the_answer_before_it(sim: Sim) -> None:
    url = f"{sim.url}/v1/completions"
    whole = (await post(url, {"prompt": "stop here", "max_tokens": 80}))[1]["choices"][0]["text"]
    stop = whole[30:33]
    _, cut = await post(url, {"prompt": "stop here", "max_tokens": 80, "stop": [stop, "\n"]})
    choice = cut["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    streamed = await events(url, {"prompt": "stop here", "max_tokens": 80, "stop": stop})
    assert "".join(json.loads(data)["choices"][0]["text"] for data in streamed[:-1]) == choice["text"]


async def test_n_answers_differ_and_share_the_prompt(sim: Sim) -> None:
    _, body = await post(f"{sim.url}/v1/chat/completions", CHAT | {"n": 3, "max_tokens": 9})
    assert len({choice["message"]["content"] for choice in body["choices"]}) == 3
    assert body["usage"]["completion_tokens"] == 27
    streamed = await events(f"{sim.url}/v1/chat/completions", CHAT | {"n": 3, "max_tokens": 9})
    texts = ["", "", ""]
    for data in streamed[:-1]:
        for choice in json.loads(data)["choices"]:
            texts[choice["index"]] += choice["delta"]["content"]
    assert texts == [choice["message"]["content"] for choice in body["choices"]]


async def test_usage_in_every_event(sim: Sim) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = await events(f"{sim.url}/v1/chat/completions", CHAT | {"max_tokens": 3, "stream_options": options})
    counts = [json.loads(data)["usage"]["completion_tokens"] for data in streamed[:-1]]
    assert counts == [1, 1, 2, 3, 3]
    assert streamed[-1] == "[DONE]"


async def test_token_ids_go_in_and_come_out(sim: Sim) -> None:
    body = {"prompt": list(b"by ids"), "max_tokens": 4, "return_token_ids": True}
    _, answer = await post(f"{sim.url}/v1/completions", body)
    choice = answer["choices"][0]
    assert choice["prompt_token_ids"] == body["prompt"]
    assert bytes(choice["token_ids"]).decode() == choice["text"]


async def test_stream_interval_groups_tokens(start_sim: StartSim) -> None:
    sim = start_sim("--speedup", "200", "--stream-interval", "10")
    streamed = await events(f"{sim.url}/v1/completions", {"prompt": "x", "max_tokens": 25})
    assert [len(json.loads(data)["choices"][0]["text"]) for data in streamed[:-1]] == [1, 10, 10, 4]


async def test_tokenize_and_detokenize(sim: Sim) -> None:
    _, plain = await post(f"{sim.url}/tokenize", {"prompt": "é<|im_end|>", "return_token_strs": True})
    assert (plain["count"], plain["tokens"]) == (3, [0xC3, 0xA9, 258])
    assert plain["token_strs"][-1] == "<|im_end|>"
    _, chat = await post(f"{sim.url}/tokenize", CHAT)
    _, text = await post(f"{sim.url}/detokenize", {"tokens": chat["tokens"]})
    assert text["prompt"] == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    _, usage = await post(f"{sim.url}/v1/chat/completions", CHAT | {"max_tokens": 1})
    assert usage["usage"]["prompt_tokens"] == chat["count"]


async def test_plain_endpoints_answer(sim: Sim) -> None:
    for path in ("/health", "/ping", "/version", "/load", "/v1/models", "/kv_event_sources", "/metrics"):
        status, _ = await get(sim.url + path)
        assert status == 200, path
    assert json.loads((await get(f"{sim.url}/sim/model/config.json"))[1])["vocab_size"] == 259
    for path, status in (("/nope", 404), ("/v1/chat/completions", 405), ("/sim/model/nope", 404)):
        assert (await get(sim.url + path))[0] == status


async def test_errors_have_vllms_shape(sim: Sim) -> None:
    status, body = await post(f"{sim.url}/v1/chat/completions", CHAT | {"model": "nope"})
    assert status == 404
    assert body == {
        "error": {
            "message": "The model `nope` does not exist. Valid aliases: sim.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }


async def test_the_request_id_is_the_clients(sim: Sim) -> None:
    _, body = await post(f"{sim.url}/v1/chat/completions", CHAT | {"max_tokens": 1}, **{"X-Request-Id": "abc-1"})
    assert body["id"] == "chatcmpl-abc-1"


async def test_too_many_requests_get_503(start_sim: StartSim) -> None:
    sim = start_sim("--max-num-queued-reqs", "2", "--step-seconds", "60")
    url = f"{sim.url}/v1/completions"
    held = [asyncio.create_task(post(url, {"prompt": "x"})) for _ in range(2)]

    async def both_in() -> bool:
        return await in_flight(sim.url) == 2

    await eventually(both_in, "two requests in flight")
    status, body = await post(url, {"prompt": "x"})
    assert (status, body["error"]["type"]) == (503, "Service Unavailable")
    assert (await gauges(sim.url))["vllm:admission_rejections_total"] == 1
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_cache_reset_forgets(sim: Sim) -> None:
    url = f"{sim.url}/v1/completions"
    body = {"prompt": "forget me " * 20, "max_tokens": 1}
    await post(url, body)
    assert (await post(f"{sim.url}/reset_prefix_cache", {}))[1] == {"success": True}
    assert (await post(url, body))[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
