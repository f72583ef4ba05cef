"""Answers in the exact JSON of vLLM's OpenAI server: chat and completion, streamed and whole.

Streamed events are put together from bytes: at thousands of tokens a second a JSON encoder per event would be the
server's main work. Only text goes through the encoder.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from roundhouse_torch import __version__
from roundhouse_torch.scheduler.sequence import Finish
from roundhouse_torch.server.generation import Delta, UsageCount

FINGERPRINT = f"roundhouse-{__version__}"
DONE = b"data: [DONE]\n\n"

encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class WholeChoice:
    """One finished answer."""

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.tokens += delta.tokens
        self.finish, self.stop_reason = delta.finish, delta.stop_reason


def final_usage(count: UsageCount) -> dict[str, Any]:
    return {**_running_usage(count), "prompt_tokens_details": {"cached_tokens": count.cached_tokens}}


def _running_usage(count: UsageCount) -> dict[str, Any]:
    return {
        "prompt_tokens": count.prompt_tokens,
        "total_tokens": count.prompt_tokens + count.completion_tokens,
        "completion_tokens": count.completion_tokens,
    }


class Shape(Protocol):
    """JSON of one kind of endpoint. ``usage`` is given when every event shall carry it."""

    def opening(self, index: int, prompt_tokens: Sequence[int] | None, usage: UsageCount | None) -> bytes:
        """Event before a choice's first delta, or nothing."""
        ...

    def delta(self, delta: Delta, prompt_tokens: Sequence[int] | None, usage: UsageCount | None) -> bytes:
        """``prompt_tokens`` with a choice's first delta, when token ids are asked for."""
        ...

    def usage(self, usage: UsageCount) -> bytes: ...

    def whole(
        self, choices: Sequence[WholeChoice], usage: UsageCount, prompts: Sequence[Sequence[int]] | None
    ) -> bytes: ...


class _Base:
    """``last_fingerprint``: the finish event carries the fingerprint because no usage event will."""

    kind = ""
    chunk_kind = ""
    prefix = ""

    def __init__(
        self, request_id: str, model: str, *, show_tokens: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self.id = f"{self.prefix}-{request_id}"
        self.model = model
        self.created = int(clock())
        self.show_tokens = show_tokens
        head = encode({"id": self.id, "object": self.chunk_kind, "created": self.created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":['

    def usage(self, usage: UsageCount) -> bytes:
        return self._head + b'],"usage":' + encode(final_usage(usage)) + b"," + _FINGERPRINT + b"}\n\n"

    def _event(self, choice: bytes, usage: UsageCount | None, more: bytes = b"") -> bytes:
        tail = b"]" if usage is None else b'],"usage":' + encode(_running_usage(usage))
        return self._head + choice + tail + more + b"}\n\n"

    def _tokens(self, tokens: Sequence[int]) -> bytes:
        return encode(list(tokens)) if self.show_tokens else b"null"

    def _whole(self, choices: list[dict[str, Any]], usage: UsageCount, **more: Any) -> bytes:
        head = {"id": self.id, "object": self.kind, "created": self.created, "model": self.model, "choices": choices}
        return encode({**head, "system_fingerprint": FINGERPRINT, "usage": final_usage(usage), **more})


_FINGERPRINT = b'"system_fingerprint":' + encode(FINGERPRINT)
_ENDINGS = {finish: b'"finish_reason":' + encode(finish.value) + b',"stop_reason":' for finish in Finish}


def _ending(delta: Delta) -> bytes:
    assert delta.finish is not None
    return _ENDINGS[delta.finish] + encode(delta.stop_reason)


_NO_EXTRAS = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))


class ChatShape(_Base):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def opening(self, index: int, prompt_tokens: Sequence[int] | None, usage: UsageCount | None) -> bytes:
        choice = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}' % index
        return self._event(choice, usage, b',"prompt_token_ids":' + encode(prompt_tokens) + b',"prompt_text":null')

    def delta(self, delta: Delta, prompt_tokens: Sequence[int] | None, usage: UsageCount | None) -> bytes:
        ending = b'"finish_reason":null' if delta.finish is None else _ending(delta)
        return self._event(
            b'{"index":%d,"delta":{"content":%b},"logprobs":null,%b,"token_ids":%b}'
            % (delta.index, encode(delta.text), ending, self._tokens(delta.tokens)),
            usage,
        )

    def whole(
        self, choices: Sequence[WholeChoice], usage: UsageCount, prompts: Sequence[Sequence[int]] | None
    ) -> bytes:
        found = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, **_NO_EXTRAS},
                "logprobs": None,
                "finish_reason": choice.finish,
                "stop_reason": choice.stop_reason,
                "token_ids": choice.tokens if self.show_tokens else None,
            }
            for choice in choices
        ]
        return self._whole(found, usage, prompt_logprobs=None, prompt_token_ids=prompts[0] if prompts else None)


class CompletionShape(_Base):
    kind = "text_completion"
    chunk_kind = "text_completion"
    prefix = "cmpl"

    def opening(self, index: int, prompt_tokens: Sequence[int] | None, usage: UsageCount | None) -> bytes:
        return b""

    def delta(self, delta: Delta, prompt_tokens: Sequence[int] | None, usage: UsageCount | None) -> bytes:
        ending = b'"finish_reason":null,"stop_reason":null' if delta.finish is None else _ending(delta)
        return self._event(
            b'{"index":%d,"text":%b,"logprobs":null,%b,"prompt_token_ids":%b,"token_ids":%b}'
            % (delta.index, encode(delta.text), ending, encode(prompt_tokens), self._tokens(delta.tokens)),
            usage,
        )

    def whole(
        self, choices: Sequence[WholeChoice], usage: UsageCount, prompts: Sequence[Sequence[int]] | None
    ) -> bytes:
        per_prompt = len(choices) // len(prompts) if prompts else 1
        found = [
            {
                "index": choice.index,
                "text": choice.text,
                "logprobs": None,
                "finish_reason": choice.finish,
                "stop_reason": choice.stop_reason,
                "token_ids": choice.tokens if self.show_tokens else None,
                "prompt_logprobs": None,
                "prompt_token_ids": prompts[choice.index // per_prompt] if prompts else None,
            }
            for choice in choices
        ]
        return self._whole(found, usage)
