"""Our JSON beside what vLLM 0.32 sent: the same fields in the same order."""

import json
from collections.abc import Sequence
from typing import Any

from roundhouse_torch.scheduler.sequence import Finish
from roundhouse_torch.server.generation import Delta, UsageCount, joined
from roundhouse_torch.server.shapes import FINGERPRINT, ChatShape, CompletionShape

USAGE = UsageCount(prompt_tokens=151, completion_tokens=8, cached_tokens=128)
CHAT_HEAD = {"id": "chatcmpl-r", "object": "chat.completion.chunk", "created": 17, "model": "tiny"}
TEXT_HEAD = {"id": "cmpl-r", "object": "text_completion", "created": 17, "model": "tiny"}


def chat(show_tokens: bool = False) -> ChatShape:
    return ChatShape("r", "tiny", show_tokens=show_tokens, clock=lambda: 17.9)


def text(show_tokens: bool = False) -> CompletionShape:
    return CompletionShape("r", "tiny", show_tokens=show_tokens, clock=lambda: 17.9)


def same(event: bytes, expected: dict[str, Any]) -> bool:
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n\n") == 1
    return json.loads(event[6:], object_pairs_hook=list) == json.loads(json.dumps(expected), object_pairs_hook=list)


def running(completion: int) -> dict[str, int]:
    return {"prompt_tokens": 151, "total_tokens": 151 + completion, "completion_tokens": completion}


def test_chat_opens_with_the_role() -> None:
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    assert same(
        chat().opening(0, None, None), {**CHAT_HEAD, "choices": [choice], "prompt_token_ids": None, "prompt_text": None}
    )


def test_chat_deltas_carry_content() -> None:
    choice = {"index": 0, "delta": {"content": 'a"\n😀'}, "logprobs": None, "finish_reason": None, "token_ids": None}
    assert same(chat().delta(Delta(0, 'a"\n😀', [5]), None, None), {**CHAT_HEAD, "choices": [choice]})


def test_the_last_chat_delta_says_why() -> None:
    choice = {"index": 1, "delta": {"content": "c"}, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    event = chat(show_tokens=True).delta(Delta(1, "c", [5], Finish.LENGTH), None, None)
    assert same(event, {**CHAT_HEAD, "choices": [{**choice, "token_ids": [5]}]})


def test_stop_reasons_are_strings_or_token_ids() -> None:
    stopped = [Delta(0, "", [], Finish.STOP, reason) for reason in ("###", 7)]
    reasons = [json.loads(chat().delta(delta, None, None)[6:])["choices"][0]["stop_reason"] for delta in stopped]
    assert reasons == ["###", 7]


def test_every_chat_event_carries_usage_when_asked() -> None:
    usage = UsageCount(151, 1, 0)
    choice = {"index": 0, "delta": {"content": "c"}, "logprobs": None, "finish_reason": None, "token_ids": None}
    assert same(chat().delta(Delta(0, "c", [5]), None, usage), {**CHAT_HEAD, "choices": [choice], "usage": running(1)})
    opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    more = {"prompt_token_ids": [1, 2], "prompt_text": None}
    assert same(chat().opening(0, [1, 2], usage), {**CHAT_HEAD, "choices": [opening], "usage": running(1), **more})


def test_the_usage_event_has_no_choices() -> None:
    usage = {**running(8), "prompt_tokens_details": {"cached_tokens": 128}}
    assert same(chat().usage(USAGE), {**CHAT_HEAD, "choices": [], "usage": usage, "system_fingerprint": FINGERPRINT})


def test_completion_deltas() -> None:
    choice = {"index": 0, "text": " 66", "logprobs": None, "finish_reason": None, "stop_reason": None}
    event = text(show_tokens=True).delta(Delta(0, " 66", [418]), [267, 345], None)
    more = {"prompt_token_ids": [267, 345], "token_ids": [418]}
    assert same(event, {**TEXT_HEAD, "choices": [{**choice, **more}]})
    ended = text().delta(Delta(0, " 66", [418], Finish.ABORT), None, None)
    more = {"finish_reason": "abort", "stop_reason": None, "prompt_token_ids": None, "token_ids": None}
    assert same(ended, {**TEXT_HEAD, "choices": [{**choice, **more}]})
    assert text().opening(0, [1], None) == b""


def whole(shape: ChatShape | CompletionShape, prompts: Sequence[Sequence[int]] | None) -> dict[str, Any]:
    choices = [
        joined([Delta(0, "a", [1]), Delta(0, "b", [3], Finish.STOP, "!")]),
        joined([Delta(1, "x", [2]), Delta(1, "", [], Finish.LENGTH)]),
    ]
    answer: dict[str, Any] = json.loads(shape.whole(choices, USAGE, prompts))
    return answer


def test_a_whole_chat() -> None:
    answer = whole(chat(), None)
    assert answer["object"] == "chat.completion"
    assert answer["usage"] == {**running(8), "prompt_tokens_details": {"cached_tokens": 128}}
    first, second = answer["choices"]
    assert first["message"]["role"] == "assistant"
    assert (first["message"]["content"], first["finish_reason"], first["stop_reason"]) == ("ab", "stop", "!")
    assert (second["message"]["content"], second["finish_reason"], second["token_ids"]) == ("x", "length", None)


def test_a_whole_completion() -> None:
    answer = whole(text(show_tokens=True), [[7, 8]])
    assert answer["object"] == "text_completion"
    assert [choice["text"] for choice in answer["choices"]] == ["ab", "x"]
    assert [choice["token_ids"] for choice in answer["choices"]] == [[1, 3], [2]]
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [[7, 8], [7, 8]]
