"""The OpenAI API of a running server, through the openai client and by hand."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support.engine_server import EngineServer

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("torch-server")]
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def client(server: EngineServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def test_a_streamed_chat_is_the_whole_chat_in_pieces(client: openai.OpenAI) -> None:
    request: Any = {"model": "tiny", "seed": 7, "max_tokens": 20, **CHAT}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"


def test_a_repeated_prompt_is_found_in_the_cache(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "system", "content": "one two three " * 30}, {"role": "user", "content": "hello"}]
    first, second = (
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=2).usage for _ in range(2)
    )
    assert first is not None
    assert second is not None
    assert first.prompt_tokens_details is not None
    assert second.prompt_tokens_details is not None
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.cached_tokens == (second.prompt_tokens - 1) // 16 * 16 > 0


def test_a_salt_separates_caches(server: EngineServer) -> None:
    body = {"prompt": "salted " * 40, "max_tokens": 1}
    cached = []
    for salt in ("a", "a", "b", None, None):
        _, answer = server.post("/v1/completions", {**body, "cache_salt": salt})
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert [count > 0 for count in cached] == [False, True, False, False, True]


def test_a_seed_repeats_itself_alone_and_among_others(server: EngineServer) -> None:
    body = {"prompt": "once upon", "max_tokens": 24, "seed": 11, "temperature": 0.9, "ignore_eos": True}
    _, alone = server.post("/v1/completions", body)
    others = [{**body, "prompt": f"other {index} " * index, "seed": index} for index in range(1, 8)]
    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda one: server.post("/v1/completions", one)[1], [*others, body]))
    assert answers[-1]["choices"][0]["text"] == alone["choices"][0]["text"]
    _, different = server.post("/v1/completions", {**body, "seed": 12})
    assert different["choices"][0]["text"] != alone["choices"][0]["text"]


def test_several_answers_differ_and_count_their_prompt_once(server: EngineServer) -> None:
    body = {
        "prompt": "once upon a time",
        "n": 4,
        "seed": 3,
        "max_tokens": 12,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    status, answer = server.post("/v1/completions", body)
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) == 4
    prompt = answer["choices"][0]["prompt_token_ids"]
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == 48


def test_lists_of_prompts_are_answered_in_order(server: EngineServer) -> None:
    body: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    prompts = ["alpha beta", "gamma", "delta epsilon zeta"]
    single = [server.post("/v1/completions", {**body, "prompt": p})[1]["choices"][0]["text"] for p in prompts]
    _, together = server.post("/v1/completions", {**body, "prompt": prompts})
    assert [choice["text"] for choice in together["choices"]] == single
    tokens = [server.post("/tokenize", {"prompt": p})[1]["tokens"] for p in prompts]
    _, by_ids = server.post("/v1/completions", {**body, "prompt": tokens})
    assert [choice["text"] for choice in by_ids["choices"]] == single
    _, one = server.post("/v1/completions", {**body, "prompt": tokens[0]})
    assert one["choices"][0]["text"] == single[0]


def test_echo_puts_the_prompt_first(server: EngineServer) -> None:
    body = {"prompt": "alpha beta", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    _, plain = server.post("/v1/completions", body)
    _, echoed = server.post("/v1/completions", {**body, "echo": True})
    assert echoed["choices"][0]["text"] == "alpha beta" + plain["choices"][0]["text"]


def test_a_stop_string_ends_the_answer_and_is_not_shown(server: EngineServer) -> None:
    body = {"prompt": "once upon", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    text = server.post("/v1/completions", body)[1]["choices"][0]["text"]
    stop = text[10:13]
    _, answer = server.post("/v1/completions", {**body, "stop": [stop, "never seen"]})
    choice = answer["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert answer["usage"]["completion_tokens"] < 40
    _, shown = server.post("/v1/completions", {**body, "stop": stop, "include_stop_str_in_output": True})
    assert shown["choices"][0]["text"] == text[: text.index(stop) + len(stop)]


def test_a_stop_token_ends_the_answer_and_min_tokens_delays_it(server: EngineServer) -> None:
    body: dict[str, Any] = {"prompt": "once upon", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    body["return_token_ids"] = True
    tokens = server.post("/v1/completions", body)[1]["choices"][0]["token_ids"]
    stop = tokens[4]
    _, answer = server.post("/v1/completions", {**body, "stop_token_ids": [stop]})
    choice = answer["choices"][0]
    assert choice["token_ids"] == tokens[: tokens.index(stop) + 1]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    _, longer = server.post("/v1/completions", {**body, "stop_token_ids": [stop], "min_tokens": 10})
    assert longer["usage"]["completion_tokens"] >= 10


def events_of(raw: bytes) -> list[Any]:
    assert raw.endswith(b"\n\n")
    return [line[6:] for line in raw.decode().split("\n\n")[:-1]]


def stream(server: EngineServer, path: str, body: dict[str, Any]) -> list[Any]:
    request = urllib.request.Request(server.url + path, json.dumps({**body, "stream": True}).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = events_of(response.read())
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_usage_in_every_event_counts_up(server: EngineServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(
        server, "/v1/chat/completions", {**CHAT, "max_tokens": 5, "ignore_eos": True, "stream_options": options}
    )
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 5
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert all(event["usage"]["prompt_tokens"] == events[0]["usage"]["prompt_tokens"] for event in events)


def test_token_ids_are_returned_when_asked_for(server: EngineServer) -> None:
    events = stream(
        server, "/v1/completions", {"prompt": "hello", "max_tokens": 4, "ignore_eos": True, "return_token_ids": True}
    )
    choices = [event["choices"][0] for event in events]
    assert choices[0]["prompt_token_ids"] == server.post("/tokenize", {"prompt": "hello"})[1]["tokens"]
    assert all(choice["prompt_token_ids"] is None for choice in choices[1:])
    assert sum(len(choice["token_ids"]) for choice in choices) == 4
    plain = stream(server, "/v1/completions", {"prompt": "hello", "max_tokens": 4})
    assert all(event["choices"][0]["token_ids"] is None for event in plain)


def test_streams_of_several_answers_are_told_apart_by_index(server: EngineServer) -> None:
    body = {**CHAT, "n": 3, "seed": 1, "max_tokens": 6, "ignore_eos": True}
    _, whole = server.post("/v1/chat/completions", body)
    texts = {0: "", 1: "", 2: ""}
    for event in stream(server, "/v1/chat/completions", body):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"]["content"]
    assert list(texts.values()) == [choice["message"]["content"] for choice in whole["choices"]]


def test_the_final_message_is_continued(server: EngineServer) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "The answer is"}]
    open_end = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    _, tokens = server.post("/tokenize", open_end)
    assert server.post("/detokenize", {"tokens": tokens["tokens"]})[1]["prompt"].endswith("assistant\nThe answer is")
    status, answer = server.post("/v1/chat/completions", {**open_end, "max_tokens": 3})
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == tokens["count"]
    status, _ = server.post("/v1/chat/completions", {**open_end, "add_generation_prompt": True})
    assert status == 400


def test_a_continued_answer_goes_on_as_the_uninterrupted_one(server: EngineServer) -> None:
    """The same seed and the tokens so far as prompt: what another replica does after this one died."""
    prompt = server.post("/tokenize", {"prompt": "once upon"})[1]["tokens"]
    body: dict[str, Any] = {"seed": 5, "temperature": 0.8, "ignore_eos": True, "return_token_ids": True}
    _, whole = server.post("/v1/completions", {**body, "prompt": prompt, "max_tokens": 20})
    tokens = whole["choices"][0]["token_ids"]
    _, rest = server.post("/v1/completions", {**body, "prompt": prompt + tokens[:7], "max_tokens": 13})
    assert rest["choices"][0]["token_ids"] == tokens[7:]


def test_models_and_version(server: EngineServer, client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["tiny", "also-tiny"]
    assert json.loads(server.get("/v1/models"))["data"][0]["max_model_len"] == 2048
    assert json.loads(server.get("/version"))["version"]
    assert client.completions.create(model="also-tiny", prompt="x", max_tokens=1).model == "also-tiny"


def test_tokens_and_back(server: EngineServer) -> None:
    status, answer = server.post("/tokenize", {"prompt": "hello wörld 😀", "return_token_strs": True})
    assert status == 200
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert server.post("/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": "hello wörld 😀"})


def test_the_request_id_is_kept(server: EngineServer) -> None:
    _, answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, **{"X-Request-Id": "req-42"})
    assert answer["id"] == "cmpl-req-42"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/chat/completions", b"{", 400, "body"),
        ("/v1/chat/completions", b"\xff\xfe", 400, "body"),
        ("/v1/chat/completions", {}, 400, "body"),
        ("/v1/chat/completions", {"messages": "x"}, 400, "messages"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "messages"),
        ("/v1/chat/completions", {**CHAT, "model": "nope"}, 404, "model"),
        ("/v1/chat/completions", {**CHAT, "temperature": -1}, 400, "temperature"),
        ("/v1/chat/completions", {**CHAT, "top_logprobs": 3}, 400, "top_logprobs"),
        ("/v1/chat/completions", {**CHAT, "tools": [{}]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tool_choice": "required"}, 400, "tool_choice"),
        ("/v1/chat/completions", {**CHAT, "guided_regex": "("}, 400, "guided_regex"),
        ("/v1/chat/completions", {**CHAT, "guided_json": {"type": "x"}}, 400, "guided_json"),
        ("/v1/completions", {"prompt": "x", "logprobs": 21}, 400, "logprobs"),
        ("/v1/completions", {"prompt": "x", "logprobs": 1, "echo": True}, 400, "logprobs"),
        ("/v1/embeddings", {"input": ""}, 400, "prompt"),
        ("/v1/embeddings", {"input": []}, 400, "input"),
        ("/v1/embeddings", {"input": "x", "dimensions": 3}, 400, "dimensions"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int8"}, 400, "encoding_format"),
        ("/v1/load_lora_adapter", {"lora_name": "a"}, 400, "lora_path"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"}, 404, "lora_path"),
        ("/v1/unload_lora_adapter", {"lora_name": "a"}, 404, "lora_name"),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 10**6}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "x " * 3000}, 400, "input_tokens"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt"),
        ("/v1/completions", {"prompt": [10**6]}, 400, "prompt"),
        ("/v1/completions", {"prompt": ["x"] * 1025}, 400, "prompt"),
        ("/tokenize", {}, 400, "prompt"),
        ("/detokenize", {"tokens": [-1]}, 400, "prompt"),
    ],
)
def test_bad_requests_are_refused_in_openais_shape(
    server: EngineServer, path: str, body: Any, status: int, param: str
) -> None:
    found, answer = server.post(path, body)
    assert found == status
    assert answer["error"]["code"] == status
    assert answer["error"]["param"] == param
    assert answer["error"]["message"]


def test_unknown_paths_and_methods(server: EngineServer) -> None:
    assert server.post("/v1/nothing", {}) == (404, {"detail": "Not Found"})
    assert server.post("/v1/models", {}) == (405, {"detail": "Method Not Allowed"})


def test_a_full_queue_is_refused_with_a_hint_when_to_retry(server: EngineServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="tiny", prompt=["word " * 30] * 40, max_tokens=2)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["Retry-After"]
    server.wait_for_metric("num_requests_running", 0)
