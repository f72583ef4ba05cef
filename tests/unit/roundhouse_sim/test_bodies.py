import json

import pytest
from roundhouse_sim.bodies import (
    DetokenizeBody,
    TokenizeBody,
    decode_body,
    detokenize_prompt,
    parse_chat,
    parse_completion,
    tokenize_prompt,
)
from roundhouse_sim.errors import ApiError
from roundhouse_sim.settings import Settings

SETTINGS = Settings(served_names=("m", "alias"), kv_tokens=160, block_size=16)
USER = [{"role": "user", "content": "hi"}]


def chat(**fields: object) -> bytes:
    return json.dumps({"messages": USER, **fields}).encode()


def completion(**fields: object) -> bytes:
    return json.dumps({"prompt": "abc", **fields}).encode()


def test_defaults_of_a_chat() -> None:
    request = parse_chat(chat(), SETTINGS)
    assert (request.model, request.n, request.max_tokens, request.ends, request.stream) == ("m", 1, None, True, False)


def test_defaults_of_a_completion() -> None:
    request = parse_completion(completion(), SETTINGS)
    assert (request.max_tokens, request.ends, request.prompts) == (16, False, ("abc",))


def test_unknown_fields_are_ignored() -> None:
    assert parse_chat(chat(tools=[], whatever={"x": 1}, temperature=0.7), SETTINGS).n == 1


def test_max_completion_tokens_wins() -> None:
    assert parse_chat(chat(max_tokens=3, max_completion_tokens=5), SETTINGS).max_tokens == 5


def test_ignore_eos_means_that_the_answer_does_not_end_by_itself() -> None:
    assert not parse_chat(chat(ignore_eos=True), SETTINGS).ends


def test_usage_in_every_event_needs_include_usage() -> None:
    alone = parse_chat(chat(stream=True, stream_options={"continuous_usage_stats": True}), SETTINGS)
    both = {"continuous_usage_stats": True, "include_usage": True}
    assert not alone.continuous_usage
    assert parse_chat(chat(stream=True, stream_options=both), SETTINGS).continuous_usage


def test_prompt_takes_text_texts_ids_and_lists_of_ids() -> None:
    prompts = ["ab", ["ab", "c"], [97, 98], [[97], [98]]]
    parsed = [parse_completion(completion(prompt=prompt), SETTINGS).prompts for prompt in prompts]
    assert parsed == [("ab",), ("ab", "c"), ("ab",), ("a", "b")]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"\xff", b"{}", chat(max_tokens=0), chat(max_tokens=161), chat(max_tokens="5"), chat(n=0),
        chat(n=129), chat(temperature=-1), chat(stream_options={"include_usage": True}), chat(cache_salt=""),
        chat(seed=2**63), chat(messages=[]), chat(messages="hi"), chat(messages=[{"content": "x"}]),
        chat(messages=[{"role": "user", "content": "x" * 200}]), chat(stop=7), chat(add_generation_prompt="x"),
    ],
)  # fmt: skip
def test_bad_chat_bodies_get_400(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(body, SETTINGS)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "prompt", [None, "", [], [1, "a"], [[1], 2], [259], [-1], [[]], ["a", ""], {"a": 1}, "x" * 160, [True], 3.5]
)
def test_bad_prompts_get_400(prompt: object) -> None:
    with pytest.raises(ApiError) as refused:
        parse_completion(completion(prompt=prompt), SETTINGS)
    assert refused.value.status == 400


def test_unknown_model_gets_404_with_the_names_that_exist() -> None:
    with pytest.raises(ApiError, match="m, alias") as refused:
        parse_chat(chat(model="nope"), SETTINGS)
    assert (refused.value.status, refused.value.param) == (404, "model")
    assert parse_chat(chat(model="alias"), SETTINGS).model == "alias"


def test_tokenize_takes_a_prompt_or_a_chat() -> None:
    assert tokenize_prompt(decode_body(TokenizeBody, b'{"prompt":"ab"}')) == "ab"
    tokens = tokenize_prompt(decode_body(TokenizeBody, json.dumps({"messages": USER}).encode()))
    assert tokens == parse_chat(chat(), SETTINGS).prompts[0]
    for body in (b"{}", b'{"prompt":"a","messages":[]}'):
        with pytest.raises(ApiError):
            tokenize_prompt(decode_body(TokenizeBody, body))


def test_detokenize_refuses_ids_outside_the_vocabulary() -> None:
    with pytest.raises(ApiError, match="vocabulary"):
        detokenize_prompt(decode_body(DetokenizeBody, b'{"tokens":[1,999]}'))
