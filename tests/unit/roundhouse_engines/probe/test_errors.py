"""What a probe says of an engine's refusal: never the body, which may hold the prompt."""

import json

import pytest
from roundhouse_engines.errors import ProbeError
from roundhouse_engines.vllm.probe import _checked, _object

SECRET = "the prompt of a customer"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"error": {"message": SECRET, "type": "BadRequestError", "code": 400}},
            "/tokenize answered 400 (BadRequestError)",
        ),
        (
            {"object": "error", "message": SECRET, "type": "invalid_request_error"},
            "answered 400 (invalid_request_error)",
        ),
        ({"error": {"message": SECRET, "type": SECRET}}, "/tokenize answered 400"),
        ({"error": SECRET}, "/tokenize answered 400"),
        ({"detail": SECRET}, "/tokenize answered 400"),
        ([SECRET], "/tokenize answered 400"),
        (SECRET, "/tokenize answered 400"),
    ],
)
def test_a_refusal_is_told_by_status_and_known_type(body: object, said: str) -> None:
    with pytest.raises(ProbeError) as error:
        _checked("/tokenize", 400, json.dumps(body).encode())
    assert str(error.value).endswith(said)
    assert SECRET not in str(error.value)


def test_a_refusal_that_is_no_json_is_told_by_its_status() -> None:
    with pytest.raises(ProbeError, match=r"^/x answered 500$"):
        _checked("/x", 500, SECRET.encode() + b"\xff")


def test_an_unreadable_answer_is_told_by_its_size() -> None:
    with pytest.raises(ProbeError) as error:
        _object(SECRET.encode())
    assert SECRET not in str(error.value)
    assert str(len(SECRET)) in str(error.value)
