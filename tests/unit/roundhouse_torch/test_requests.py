"""Which request bodies are accepted, and what the others are told."""

from typing import Any

import pytest
from roundhouse_torch.errors import BadRequest, MalformedRequest
from roundhouse_torch.models.config import GenerationDefaults
from roundhouse_torch.server.requests import (
    ChatRequest,
    CompletionRequest,
    Plan,
    answer_tokens,
    check,
    parse,
    parse_json,
    refuse_unsupported,
    texts_or_ids,
)

MESSAGES = [{"role": "user", "content": "hi"}]


def plan(defaults: GenerationDefaults | None = None, **fields: Any) -> Plan:
    request = parse({"messages": MESSAGES, **fields}, ChatRequest)
    return check(request, defaults or GenerationDefaults(), frozenset((2,)), 100)


@pytest.mark.parametrize("data", [b"", b"{", b"nope", b'{"a": "\xff"}', b"[1]", b'"x"', b'{"a":1} x'])
def test_what_is_no_json_object_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        parse_json(data)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": 5}, "messages"),
        ({"messages": ["x"]}, "messages"),
        ({"messages": MESSAGES, "max_tokens": "many"}, "max_tokens"),
        ({"messages": MESSAGES, "stop": [1]}, "stop"),
        ({"messages": MESSAGES, "stream_options": 1}, "stream_options"),
        ({"messages": MESSAGES, "tools": [5]}, "tools"),
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools"),
        ({"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": 5}}]}, "tools"),
        ({"messages": MESSAGES, "tools": [{"function": {"name": "f", "parameters": [1]}}]}, "tools"),
        ({"messages": MESSAGES, "tool_choice": "sometimes"}, "tool_choice"),
        ({"messages": MESSAGES, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({}, "body"),
    ],
)
def test_wrong_types_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        parse(fields, ChatRequest)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "inf"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop_token_ids": [100]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"seed": 2**63}, "seed"),
        ({"min_p": 1.5}, "min_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"100": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
    ],
)
def test_values_out_of_range_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        plan(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 3},
        {"prompt_logprobs": 1},
        {"bad_words": ["x"]},
        {"allowed_token_ids": [1]},
        {"use_beam_search": True},
    ],
)
def test_features_that_are_missing_are_refused_not_ignored(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="engine"):
        refuse_unsupported(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0.0, "logprobs": False, "logit_bias": {}, "top_logprobs": 0},
        {"response_format": {"type": "text"}, "repetition_penalty": 1.0},
        {"tools": []},
        {"best_of": 1, "bad_words": [], "suffix": ""},
        {"frequency_penalty": None, "logprobs": None},
        {"user": "u", "metadata": {}, "never_heard_of": [1, {"x": 2}]},
    ],
)
def test_neutral_values_and_unknown_fields_pass(fields: dict[str, Any]) -> None:
    refuse_unsupported(fields)
    parse({"messages": MESSAGES, **fields}, ChatRequest)


def test_the_models_defaults_hold_where_the_request_is_silent() -> None:
    defaults = GenerationDefaults(temperature=0.6, top_p=0.9, top_k=20)
    silent, loud = plan(defaults), plan(defaults, temperature=0, top_p=1, top_k=-1)
    assert (silent.sampling.temperature, silent.sampling.top_p, silent.sampling.top_k) == (0.6, 0.9, 20)
    assert (loud.sampling.temperature, loud.sampling.top_p, loud.sampling.top_k) == (0, 1, 0)


def test_a_hardly_warm_temperature_is_greedy_or_raised() -> None:
    assert plan(temperature=1e-6).sampling.temperature == 0
    assert plan(temperature=1e-3).sampling.temperature == 0.01


def test_seeds_are_kept_or_drawn() -> None:
    assert plan(seed=-5).sampling.seed == -5
    assert plan().sampling.seed != plan().sampling.seed


def test_ignore_eos_takes_the_end_tokens_away() -> None:
    assert plan().sampling.eos_ids == {2}
    assert plan(ignore_eos=True, stop_token_ids=[7]).sampling.eos_ids == frozenset()
    assert plan(stop_token_ids=[7]).sampling.stop_ids == {7}


def test_numbers_written_as_text_are_taken_as_numbers() -> None:
    request = parse({"messages": MESSAGES, "max_tokens": "5", "temperature": "0.5"}, ChatRequest)
    assert (request.asked_tokens, request.temperature) == (5, 0.5)


def test_max_completion_tokens_wins() -> None:
    assert parse({"messages": MESSAGES, "max_tokens": 5, "max_completion_tokens": 7}, ChatRequest).asked_tokens == 7


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_prompts_in_all_four_forms(prompt: Any, prompts: list[Any]) -> None:
    assert texts_or_ids(parse({"prompt": prompt}, CompletionRequest).prompt, "prompt") == prompts


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1, [2]], ["a", [1]]])
def test_mixed_and_empty_prompt_lists_are_malformed(prompt: Any) -> None:
    with pytest.raises(MalformedRequest):
        texts_or_ids(parse({"prompt": prompt}, CompletionRequest).prompt, "prompt")


def test_answers_get_what_was_asked_for_as_far_as_the_context_allows() -> None:
    assert answer_tokens(None, None, 10, 100, 0) == 90
    assert answer_tokens(None, 16, 10, 100, 0) == 16
    assert answer_tokens(95, 16, 10, 100, 0) == 90
    assert answer_tokens(5, None, 99, 100, 0) == 1


@pytest.mark.parametrize(
    ("asked", "prompt", "least", "param"),
    [
        (101, 10, 0, "max_tokens"),
        (5, 100, 0, "input_tokens"),
        (5, 0, 0, "prompt"),
        (5, 10, 6, "min_tokens"),
    ],
)
def test_lengths_that_cannot_be_name_the_field(asked: int, prompt: int, least: int, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        answer_tokens(asked, None, prompt, 100, least)
    assert caught.value.param == param
