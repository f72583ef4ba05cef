"""Log-probabilities, structured output, tools, embeddings, adapters and guesses of a running server, by the openai
client, by hand and beside transformers.
"""

import base64
import json
import os
import re
import signal
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import torch
from transformers import AutoModel

from tests.integration.torch.test_connections import connect, read_until, request
from tests.support.adapters import greedy, merged, write_adapter
from tests.support.engine_server import EngineServer, running

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("torch-features")]
CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["a", "b"]}},
    "required": ["n", "kind"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
TOOLS: Any = [{"type": "function", "function": {"name": "store", "parameters": SCHEMA}}]


@pytest.fixture(scope="module")
def featured(tiny_folder: Path) -> Iterator[EngineServer]:
    flags = ("--spec-method", "ngram", "--enable-lora", "--tool-call-parser", "hermes", "--reasoning-parser", "none")
    with running(tiny_folder, "--served-model-name", "tiny", "--kv-cache-bytes", "8MiB", *flags) as server:
        yield server


@pytest.fixture
def client(featured: EngineServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=featured.url + "/v1", api_key="none", max_retries=0, timeout=60)


def test_log_probabilities_of_a_chat_are_the_same_streamed_and_whole(client: openai.OpenAI) -> None:
    asked: Any = {**CHAT, "seed": 3, "max_tokens": 9, "logprobs": True, "top_logprobs": 4}
    whole = client.chat.completions.create(**asked).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    assert len(whole.content) == 9
    streamed = [
        token
        for chunk in client.chat.completions.create(**asked, stream=True)
        if chunk.choices[0].logprobs is not None
        for token in chunk.choices[0].logprobs.content or ()
    ]
    assert [token.token for token in streamed] == [token.token for token in whole.content]
    assert [token.logprob for token in streamed] == pytest.approx([token.logprob for token in whole.content], abs=1e-4)
    for token in whole.content:
        assert [top.logprob for top in token.top_logprobs] == sorted(
            (t.logprob for t in token.top_logprobs), reverse=True
        )
        assert len(token.top_logprobs) == 4
        assert bytes(token.bytes or ()).decode(errors="replace") == token.token


def test_log_probabilities_of_a_completion(client: openai.OpenAI) -> None:
    choice = client.completions.create(model="tiny", prompt="once", max_tokens=6, temperature=0, logprobs=2).choices[0]
    assert choice.logprobs is not None
    told = choice.logprobs
    assert told.tokens is not None
    assert told.text_offset == [sum(map(len, told.tokens[:index])) for index in range(6)]
    for token, logprob, top in zip(told.tokens, told.token_logprobs or (), told.top_logprobs or (), strict=True):
        assert top[token] == logprob == max(top.values())
    alone = client.completions.create(model="tiny", prompt="once", max_tokens=6, temperature=0, logprobs=0).choices[0]
    assert alone.logprobs is not None
    assert alone.logprobs.token_logprobs == pytest.approx(told.token_logprobs, abs=1e-4)


def test_a_schema_is_followed_by_every_answer_streamed_or_not(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    asked: Any = {**CHAT, "seed": 5, "n": 3, "max_tokens": 60, "response_format": form}
    whole = [choice.message.content for choice in client.chat.completions.create(**asked).choices]
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == whole
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_structure_in_vllms_spellings(featured: EngineServer) -> None:
    body: dict[str, Any] = {"prompt": "x", "max_tokens": 40}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"structured_outputs": {"regex": "[ab]{4}"}}, "[ab]{4}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_grammar": 'root ::= "x" [0-9] [0-9]', "ignore_eos": True}, "x[0-9][0-9]"),
    ]
    for fields, pattern in cases:
        _, answer = featured.post("/v1/completions", {**body, **fields})
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert re.fullmatch(pattern, answer["choices"][0]["text"])


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), ("store", "stop")])
def test_a_forced_call_streamed_and_whole(client: openai.OpenAI, choice: str, reason: str) -> None:
    named: Any = {"type": "function", "function": {"name": choice}}
    asked: Any = {**CHAT, "seed": 5, "max_tokens": 150, "tools": TOOLS, "parallel_tool_calls": False}
    asked["tool_choice"] = choice if choice == "required" else named
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == reason
    assert whole.message.content is None
    (call,) = whole.message.tool_calls or ()
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)  # type: ignore[union-attr]
    name, arguments, finish = "", "", None
    for chunk in client.chat.completions.create(**asked, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or ():
            assert delta.function is not None
            name += delta.function.name or ""
            arguments += delta.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert (name, arguments, finish) == ("store", call.function.arguments, reason)  # type: ignore[union-attr]


def test_embeddings_are_transformers_last_hidden_state(featured: EngineServer, tiny_folder: Path) -> None:
    texts = ["once upon a time", "hello", "x " * 700]
    status, answer = featured.post("/v1/embeddings", {"input": texts, "model": "tiny"})
    assert status == 200
    model = AutoModel.from_pretrained(tiny_folder, dtype=torch.float32)
    tokens = [featured.post("/tokenize", {"prompt": text})[1]["tokens"] for text in texts]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, tokens))
    for item, ids in zip(answer["data"], tokens, strict=True):
        with torch.inference_mode():
            hidden = model(torch.tensor([ids])).last_hidden_state[0, -1]
        torch.testing.assert_close(torch.tensor(item["embedding"]), hidden / hidden.norm(), atol=1e-4, rtol=0)
    _, packed = featured.post("/v1/embeddings", {"input": tokens[0], "encoding_format": "base64"})
    vector = struct.unpack("<64f", base64.b64decode(packed["data"][0]["embedding"]))
    assert list(vector) == pytest.approx(answer["data"][0]["embedding"], abs=1e-5)


def plain(server: EngineServer, path: str, body: dict[str, Any]) -> tuple[int, str]:
    asked = urllib.request.Request(server.url + path, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(asked, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]["type"]


def test_an_adapter_is_loaded_used_and_unloaded(featured: EngineServer, tiny_folder: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "poet", tiny_folder, seed=4)
    load, use = {"lora_name": "poet", "lora_path": str(folder)}, {"model": "poet", "prompt": [5, 6, 7] * 9}
    assert plain(featured, "/v1/load_lora_adapter", load)[0] == 200
    assert plain(featured, "/v1/load_lora_adapter", load) == (400, "InvalidUserInput")
    assert plain(featured, "/v1/load_lora_adapter", {**load, "load_inplace": True})[0] == 200
    models = json.loads(featured.get("/v1/models"))["data"]
    assert [(model["id"], model["parent"]) for model in models] == [("tiny", None), ("poet", "tiny")]
    more = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    _, answer = featured.post("/v1/completions", {**use, **more})
    assert answer["model"] == "poet"
    assert answer["choices"][0]["token_ids"] == greedy(merged(tiny_folder, folder), [5, 6, 7] * 9, 8)
    assert plain(featured, "/v1/unload_lora_adapter", {"lora_name": "poet"})[0] == 200
    assert plain(featured, "/v1/unload_lora_adapter", {"lora_name": "poet"}) == (404, "NotFoundError")
    assert featured.post("/v1/completions", use)[0] == 404
    broken = tmp_path / "broken"
    broken.mkdir()
    assert plain(featured, "/v1/load_lora_adapter", {"lora_name": "b", "lora_path": str(broken)})[0] == 400


def test_adapters_are_refused_by_a_server_without_them(server: EngineServer, tmp_path: Path) -> None:
    status, answer = server.post("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": str(tmp_path)})
    assert status == 400
    assert "--enable-lora" in answer["error"]["message"]


def test_guesses_are_counted_and_change_no_answer(featured: EngineServer, server: EngineServer) -> None:
    body = {"prompt": [5, 6, 7, 8] * 12, "max_tokens": 60, "ignore_eos": True, "logit_bias": {"5": 9, "6": 9, "7": 9}}
    for fields in ({"temperature": 0}, {"seed": 1, "top_k": 2}, {"seed": 2, "repetition_penalty": 1.1, "logprobs": 1}):
        answers = [one.post("/v1/completions", {**body, **fields})[1]["choices"][0] for one in (featured, server)]
        assert answers[0]["text"] == answers[1]["text"]
    drafted, accepted = (featured.metric(f"spec_decode_num_{kind}_tokens_total") for kind in ("draft", "accepted"))
    assert drafted >= accepted > 10


def test_comments_keep_a_silent_stream_alive(tiny_folder: Path) -> None:
    flags = ("--kv-cache-bytes", "8MiB", "--sse-keep-alive-interval", "0.05")
    with running(tiny_folder, *flags) as server, connect(server) as connection:
        os.kill(server.engine_pid(), signal.SIGSTOP)
        body = {"prompt": "x", "max_tokens": 3, "ignore_eos": True, "stream": True}
        connection.sendall(request("/v1/completions", body))
        data = read_until(connection, b": keep-alive\n\n")
        os.kill(server.engine_pid(), signal.SIGCONT)
        data += read_until(connection, b"[DONE]")
    assert b" 200 OK" in data
    assert data.count(b"data: ") == 4
