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
from roundhouse_torch.server.logprobs import Told, chat_logprobs, completion_logprobs
from roundhouse_torch.server.output_parser import OutputParser, joined

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
    logprobs: list[Told] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
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
TOOL_CALLS = "tool_calls"
_REASONS = (*(finish.value for finish in Finish), TOOL_CALLS)
_ENDINGS = {reason: b'"finish_reason":' + encode(reason) + b',"stop_reason":' for reason in _REASONS}


def _ending(delta: Delta, reason: str = "") -> bytes:
    assert delta.finish is not None
    return _ENDINGS[reason or delta.finish] + encode(delta.stop_reason)


_NO_EXTRAS = dict.fromkeys(("content", "refusal", "annotations", "audio", "function_call", "reasoning"))


class ChatShape(_Base):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def __init__(
        self, request_id: str, model: str, *, show_tokens: bool, parser: Callable[[], OutputParser] | None = None,
        named_tool: bool = False, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """``parser``: one is made for each choice; None: all text is content. ``named_tool``: OpenAI's finish_reason
        for a call that the client itself named is stop.
        """
        super().__init__(request_id, model, show_tokens=show_tokens, clock=clock)
        self._new_parser = parser
        self._named_tool = named_tool
        self._parsers: dict[int, OutputParser] = {}

    def opening(self, index: int, prompt_tokens: Sequence[int] | None, usage: UsageCount | None) -> bytes:
        choice = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}' % index
        return self._event(choice, usage, b',"prompt_token_ids":' + encode(prompt_tokens) + b',"prompt_text":null')

    def delta(self, delta: Delta, prompt_tokens: Sequence[int] | None, usage: UsageCount | None) -> bytes:
        if self._new_parser is None:
            return self._delta(delta, b'{"content":%b}' % encode(delta.text), usage)
        parser = self._parsers.get(delta.index) or self._parsers.setdefault(delta.index, self._new_parser())
        parts = parser.push(delta.text, last=delta.finish is not None)
        if not parts and delta.finish is None and not delta.logprobs and not self.show_tokens:
            return b""
        *first, last = parts or [{}]
        before = b"".join(self._delta(Delta(delta.index, "", ()), encode(part), usage) for part in first)
        return before + self._delta(delta, encode(last), usage, self._reason(delta.finish, parser))

    def _delta(self, delta: Delta, fields: bytes, usage: UsageCount | None, reason: str = "") -> bytes:
        ending = b'"finish_reason":null' if delta.finish is None else _ending(delta, reason)
        told = encode(chat_logprobs(delta.logprobs)) if delta.logprobs else b"null"
        return self._event(
            b'{"index":%d,"delta":%b,"logprobs":%b,%b,"token_ids":%b}'
            % (delta.index, fields, told, ending, self._tokens(delta.tokens)),
            usage,
        )

    def _reason(self, finish: Finish | None, parser: OutputParser) -> str:
        """Empty: as it ended."""
        return TOOL_CALLS if finish is Finish.STOP and parser.calls and not self._named_tool else ""

    def whole(
        self, choices: Sequence[WholeChoice], usage: UsageCount, prompts: Sequence[Sequence[int]] | None
    ) -> bytes:
        found = [self._choice(choice) for choice in choices]
        return self._whole(found, usage, prompt_logprobs=None, prompt_token_ids=prompts[0] if prompts else None)

    def _choice(self, choice: WholeChoice) -> dict[str, Any]:
        message: dict[str, Any] = {"content": choice.text}
        reason = ""
        if self._new_parser is not None:
            parser = self._new_parser()
            message = {"content": None, **joined(parser.push(choice.text, last=True))}
            reason = self._reason(choice.finish, parser)
        return {
            "index": choice.index,
            "message": {"role": "assistant", **_NO_EXTRAS, **message},
            "logprobs": chat_logprobs(choice.logprobs),
            "finish_reason": reason or choice.finish,
            "stop_reason": choice.stop_reason,
            "token_ids": choice.tokens if self.show_tokens else None,
        }


class CompletionShape(_Base):
    kind = "text_completion"
    chunk_kind = "text_completion"
    prefix = "cmpl"

    def opening(self, index: int, prompt_tokens: Sequence[int] | None, usage: UsageCount | None) -> bytes:
        return b""

    def delta(self, delta: Delta, prompt_tokens: Sequence[int] | None, usage: UsageCount | None) -> bytes:
        ending = b'"finish_reason":null,"stop_reason":null' if delta.finish is None else _ending(delta)
        return self._event(
            b'{"index":%d,"text":%b,"logprobs":%b,%b,"prompt_token_ids":%b,"token_ids":%b}'
            % (
                delta.index,
                encode(delta.text),
                encode(completion_logprobs(delta.logprobs)) if delta.logprobs else b"null",
                ending,
                encode(prompt_tokens),
                self._tokens(delta.tokens),
            ),
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
                "logprobs": completion_logprobs(choice.logprobs),
                "finish_reason": choice.finish,
                "stop_reason": choice.stop_reason,
                "token_ids": choice.tokens if self.show_tokens else None,
                "prompt_logprobs": None,
                "prompt_token_ids": prompts[choice.index // per_prompt] if prompts else None,
            }
            for choice in choices
        ]
        return self._whole(found, usage)
