"""Engine dialects against what a real vLLM sent, and against what it could send to confuse a relay."""

import json

import pytest
from roundhouse_engines.dialect import Dialect, Mark, Usage, load_dialect
from roundhouse_engines.errors import UnknownEngine

CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,'
    b'"delta":{"content":"c"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)
CONTINUOUS = CHUNK.replace(b"]}\n\n", b'],"usage":{"prompt_tokens":151,"total_tokens":152,"completion_tokens":1}}\n\n')
USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[],"usage":'
    b'{"prompt_tokens":151,"total_tokens":159,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":128,'
    b'"created_cache_tokens":0}},"system_fingerprint":"vllm-0.32.0"}\n\n'
)
ABORT = CHUNK.replace(b'"finish_reason":null', b'"finish_reason":"abort"')
FAILED = CHUNK.replace(b'"finish_reason":null', b'"finish_reason":"error"')
ERROR = b'data: {"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunk(content: str, **fields: object) -> bytes:
    body = {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}], **fields}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@pytest.fixture(params=["vllm", "torch", "sim"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return load_dialect(request.param)


def test_dialect_knows_its_own_kind() -> None:
    assert [load_dialect(kind).kind for kind in ("vllm", "torch", "sim")] == ["vllm", "torch", "sim"]


def test_unknown_engine_is_named() -> None:
    with pytest.raises(UnknownEngine, match="'tpu'"):
        load_dialect("tpu")


@pytest.mark.parametrize(
    ("event", "mark"),
    [
        (CHUNK, Mark.DATA),
        (CONTINUOUS, Mark.DATA),
        (USAGE, Mark.USAGE),
        (USAGE.replace(b'"choices":[]', b'"choices": []'), Mark.USAGE),
        (ABORT, Mark.ABORT),
        (FAILED, Mark.ABORT),
        (ERROR, Mark.ERROR),
        (DONE, Mark.DONE),
        (b"data:[DONE]\r\n\r\n", Mark.DONE),
        (b": keep-alive\n\n", Mark.DATA),
        (b"data: not json with \"error\"\n\n", Mark.DATA),
        (b'data: [1, "error"]\n\n', Mark.DATA),
        (chunk("x", error=None), Mark.DATA),
        (chunk('say {"error": 1} and [DONE] and "abort"'), Mark.DATA),
        (chunk("x", choices=[]), Mark.DATA),
    ],
)  # fmt: skip
def test_mark_of_an_event(dialect: Dialect, event: bytes, mark: Mark) -> None:
    assert dialect.mark(event) is mark


@pytest.mark.parametrize("event", [USAGE, ABORT, FAILED, ERROR, DONE])
def test_plain_never_hides_an_event_that_is_more_than_data(dialect: Dialect, event: bytes) -> None:
    with_null = CHUNK.replace(b"]}\n\n", b'],"usage":null}\n\n')
    assert dialect.plain(CHUNK + with_null)
    assert not dialect.plain(with_null + event)
    assert not dialect.plain(event + with_null)


def test_usage_of_the_final_event_and_of_a_body(dialect: Dialect) -> None:
    assert dialect.usage(USAGE) == Usage(151, 8, 128)
    assert dialect.usage(USAGE[6:]) == Usage(151, 8, 128)
    assert dialect.usage(b": comment\n" + USAGE) == Usage(151, 8, 128)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ([], None),
        ({"prompt_tokens": "7"}, None),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": 7}, Usage(7, 0, None)),
        ({"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(7, 2, None)),
        ({"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1.5}}, None),
        ({"prompt_tokens": 7, "completion_tokens": -2}, Usage(7, 0, None)),
        ({"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": None}}, Usage(7, 0, None)),
    ],
)  # fmt: skip
def test_usage_that_cannot_be_read_is_no_usage(dialect: Dialect, usage: object, expected: Usage | None) -> None:
    assert dialect.usage(json.dumps({"usage": usage}).encode()) == expected


def test_usage_of_what_is_no_json_is_no_usage(dialect: Dialect) -> None:
    assert dialect.usage(b'{"usage": {"prompt_tokens": 7') is None
    assert dialect.usage(b"\xff\xfe") is None


def test_hand_off_fields_are_control_fields_of_every_dialect(dialect: Dialect) -> None:
    assert {
        "kv_transfer_params",
        "priority",
        "bootstrap_room",
        "data_parallel_rank",
        "lora_path",
    } <= dialect.control_fields
    assert all(header == header.lower() for header in dialect.control_headers)
