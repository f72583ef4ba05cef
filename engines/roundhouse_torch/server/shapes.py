"""Answers in the exact JSON of vLLM's OpenAI server: chat and completion, streamed and whole."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from roundhouse_torch import __version__
from roundhouse_torch.scheduler.sequence import Finish
from roundhouse_torch.server.generation import Alternative, Delta, Told, UsageCount
from roundhouse_torch.server.output_parser import OutputParser, joined

FINGERPRINT = f"roundhouse-{__version__}"
DONE = b"data: [DONE]\n\n"
LEAST = -9999.0
"""JSON has no infinity; vLLM's number."""
TOOL_CALLS = "tool_calls"

encode = msgspec.json.Encoder().encode

_NO_EXTRAS = dict.fromkeys(("content", "refusal", "annotations", "audio", "function_call", "reasoning"))
Choice = dict[str, Any]
Tokens = Sequence[int] | None
"""Of a prompt, when they are asked for."""


def running_usage(count: UsageCount) -> dict[str, Any]:
    prompt, completion = count.prompt_tokens, count.completion_tokens
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def final_usage(count: UsageCount) -> dict[str, Any]:
    return {**running_usage(count), "prompt_tokens_details": {"cached_tokens": count.cached_tokens}}


class Shape:
    """JSON of one kind of endpoint. ``usage`` is given when every event shall carry it."""

    kind = chunk_kind = prefix = ""

    def __init__(
        self, request_id: str, model: str, *, show_tokens: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._show_tokens = show_tokens
        head = {"id": f"{self.prefix}-{request_id}", "object": self.kind, "created": int(clock()), "model": model}
        self._head = head
        self._event_head = b"data: " + encode({**head, "object": self.chunk_kind})[:-1] + b',"choices":['

    def opening(self, index: int, prompt: Tokens, usage: UsageCount | None) -> bytes:
        """Event before a choice's first delta, or nothing."""
        return b""

    def delta(self, delta: Delta, prompt: Tokens, usage: UsageCount | None) -> bytes:
        """``prompt`` with a choice's first delta."""
        raise NotImplementedError

    def whole(self, choices: Sequence[Delta], usage: UsageCount, prompts: Sequence[Sequence[int]] | None) -> bytes:
        """``choices``: all that each gained."""
        raise NotImplementedError

    def usage(self, usage: UsageCount) -> bytes:
        more = b',"system_fingerprint":' + encode(FINGERPRINT) + b"}\n\n"
        return self._event_head + b'],"usage":' + encode(final_usage(usage)) + more

    def _event(self, choice: Choice, usage: UsageCount | None, more: bytes = b"") -> bytes:
        tail = b"]" if usage is None else b'],"usage":' + encode(running_usage(usage))
        return self._event_head + encode(choice) + tail + more + b"}\n\n"

    def _tokens(self, tokens: Sequence[int]) -> Tokens:
        return tokens if self._show_tokens else None

    def _whole(self, choices: list[Choice], usage: UsageCount, **more: Any) -> bytes:
        tail = {"system_fingerprint": FINGERPRINT, "usage": final_usage(usage)}
        return encode({**self._head, "choices": choices, **tail, **more})


class ChatShape(Shape):
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

    def opening(self, index: int, prompt: Tokens, usage: UsageCount | None) -> bytes:
        beginning = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": beginning, "logprobs": None, "finish_reason": None}
        return self._event(choice, usage, b',"prompt_token_ids":' + encode(prompt) + b',"prompt_text":null')

    def delta(self, delta: Delta, prompt: Tokens, usage: UsageCount | None) -> bytes:
        if self._new_parser is None:
            return self._event(self._choice(delta, "delta", {"content": delta.text}, delta.finish), usage)
        parser = self._parsers.get(delta.index) or self._parsers.setdefault(delta.index, self._new_parser())
        parts = parser.push(delta.text, last=delta.finish is not None)
        if not parts and delta.finish is None and not delta.logprobs and not self._show_tokens:
            return b""
        *first, last = parts or [{}]
        choices = [self._choice(Delta(delta.index, "", ()), "delta", part, None) for part in first]
        choices.append(self._choice(delta, "delta", last, self._reason(delta.finish, parser)))
        return b"".join(self._event(choice, usage) for choice in choices)

    def whole(self, choices: Sequence[Delta], usage: UsageCount, prompts: Sequence[Sequence[int]] | None) -> bytes:
        found = []
        for choice in choices:
            message: dict[str, Any] = {"content": choice.text}
            reason: str | None = choice.finish
            if self._new_parser is not None:
                parser = self._new_parser()
                message = {"content": None, **joined(parser.push(choice.text, last=True))}
                reason = self._reason(choice.finish, parser)
            found.append(self._choice(choice, "message", {"role": "assistant", **_NO_EXTRAS, **message}, reason))
        return self._whole(found, usage, prompt_logprobs=None, prompt_token_ids=prompts[0] if prompts else None)

    def _choice(self, gained: Delta, field: str, message: dict[str, Any], reason: str | None) -> Choice:
        ending = {"stop_reason": gained.stop_reason} if gained.finish is not None else {}
        told = chat_logprobs(gained.logprobs)
        choice = {"index": gained.index, field: message, "logprobs": told, "finish_reason": reason, **ending}
        return {**choice, "token_ids": self._tokens(gained.tokens)}

    def _reason(self, finish: Finish | None, parser: OutputParser) -> str | None:
        return TOOL_CALLS if finish is Finish.STOP and parser.calls and not self._named_tool else finish


class CompletionShape(Shape):
    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def delta(self, delta: Delta, prompt: Tokens, usage: UsageCount | None) -> bytes:
        return self._event(self._choice(delta, prompt), usage)

    def whole(self, choices: Sequence[Delta], usage: UsageCount, prompts: Sequence[Sequence[int]] | None) -> bytes:
        of_each: Sequence[Tokens] = prompts or [None]
        per_prompt = len(choices) // len(of_each)
        found = [self._choice(choice, of_each[choice.index // per_prompt]) for choice in choices]
        return self._whole([{**choice, "prompt_logprobs": None} for choice in found], usage)

    def _choice(self, gained: Delta, prompt: Tokens) -> Choice:
        return {
            "index": gained.index,
            "text": gained.text,
            "logprobs": completion_logprobs(gained.logprobs),
            "finish_reason": gained.finish,
            "stop_reason": gained.stop_reason,
            "prompt_token_ids": prompt,
            "token_ids": self._tokens(gained.tokens),
        }


def chat_logprobs(told: Sequence[Told]) -> dict[str, Any] | None:
    def shown(one: Alternative) -> dict[str, Any]:
        return {"token": one.text, "logprob": max(one.logprob, LEAST), "bytes": list(one.raw)}

    content = [{**shown(one.chosen), "top_logprobs": [shown(other) for other in one.top]} for one in told]
    return {"content": content} if told else None


def completion_logprobs(told: Sequence[Told]) -> dict[str, Any] | None:
    """The chosen token is always among the top ones."""
    if not told:
        return None
    return {
        "text_offset": [one.offset for one in told],
        "token_logprobs": [max(one.chosen.logprob, LEAST) for one in told],
        "tokens": [one.chosen.text for one in told],
        "top_logprobs": [{other.text: max(other.logprob, LEAST) for other in (*one.top, one.chosen)} for one in told],
    }
