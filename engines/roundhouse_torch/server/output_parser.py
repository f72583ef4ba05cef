"""A chat's text so far → OpenAI's fields: ``reasoning``, ``content``, ``tool_calls``.

`read` takes the whole text apart, anew each time. What may still turn out to be a tag is left out until that is known,
so that a longer text never takes anything back. `OutputParser` tells what was added.
"""

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from roundhouse_torch.server.tools import ToolUse
from roundhouse_torch.tokenizer.stops import overlap

OPEN, CLOSE = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"

Delta = dict[str, Any]
_HEAD = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)|[{}\[\]]', re.DOTALL)


def thinking_of(prompt: str) -> str:
    """What a thinking model does behind this prompt: see `structure.THINKING`."""
    tail = prompt.rstrip()
    return "begun" if tail.endswith(OPEN) else "" if tail.endswith(CLOSE) else "optional"


class Part(NamedTuple):
    """``text`` of a ``field``; of ``tool_calls``: the arguments of a call to ``name``."""

    field: str
    text: str
    name: str = ""


class Call(NamedTuple):
    """``name`` is known before ``arguments`` are complete; ``end``: where the call ends in the text, once it does."""

    name: str
    arguments: str
    end: int | None


def read(text: str, thinking: str, tools: ToolUse | None, *, last: bool) -> Iterator[Part]:
    """``thinking``: a key of `structure.THINKING`, or empty when the model does not think; ``last``: all has come."""
    start = text.lstrip()
    if thinking == "optional" and OPEN.startswith(start) and start != OPEN and not last:
        return
    if thinking == "begun" or (thinking and start.startswith(OPEN)):
        thought, closed, rest = (start.removeprefix(OPEN) if thinking == "optional" else text).partition(CLOSE)
        yield Part("reasoning", thought if closed or last else _without(thought, CLOSE))
        if not closed:
            return
        text = rest.lstrip("\n")
    if tools is None:
        yield Part("content", text)
    else:
        yield from (_hermes if tools.notation == "hermes" else _llama)(text, last)


def _hermes(text: str, last: bool) -> Iterator[Part]:
    begin = at = 0
    while (tag := text.find(CALL, at)) >= 0:
        call = _call(text, tag + len(CALL), last)
        if call is None:  # no call after all
            at = tag + len(CALL)
            continue
        yield Part("content", text[begin:tag].rstrip())
        if call.name:
            yield Part("tool_calls", call.arguments, call.name)
        if call.end is None:
            return
        begin = at = _behind(text, call.end, CALL_END, last)
    yield Part("content", text[begin:] if last else _without(text[begin:], CALL).rstrip())


def _llama(text: str, last: bool) -> Iterator[Part]:
    at = 0
    while True:
        begin = _behind(text, at, PYTHON_TAG, last)
        call = _call(text, begin, last) if text[begin : begin + 1] == "{" else None
        if call is None:
            undecided = begin == len(text) and not last
            yield Part("content", "" if undecided else text[at:])
            return
        if call.name:
            yield Part("tool_calls", call.arguments, call.name)
        if call.end is None:
            return
        at = _behind(text, call.end, ";", last)


def _call(text: str, start: int, last: bool) -> Call | None:
    """None: what stands there is no call."""
    end = _object_end(text, start)
    if head := _HEAD.match(text, start):
        until = _object_end(text, head.end()) or end or len(text)
        return Call(json.loads(head[1]), text[head.end() : until], end)
    if end is None:
        possible = not last and text[start:].lstrip()[:1] in ("", "{")
        return Call("", "", None) if possible else None
    try:  # fields in another order
        call = json.loads(text[start:end])
        arguments = call.get("arguments", call.get("parameters", {}))
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return Call(str(call["name"]), written, end)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _object_end(text: str, start: int) -> int | None:
    """Behind the object or list that begins at ``start``; None: it is not complete, or not there."""
    depth = 0
    for mark in _MARKS.finditer(text, start):
        depth += (mark[0] in "{[") - (mark[0] in "}]")
        if depth <= 0 and mark[0] in "}]":
            return mark.end()
    return None


def _behind(text: str, at: int, mark: str, last: bool) -> int:
    """Skip spaces, ``mark`` if it is there, and spaces; the end of the text when it may still come."""
    rest = text[at:].lstrip()
    if mark.startswith(rest) and not last:
        return len(text)
    return len(text) - len(rest.removeprefix(mark).lstrip())


def _without(text: str, tag: str) -> str:
    return text[: len(text) - overlap(text, tag)]


class OutputParser:
    """``calls`` counts those that were begun."""

    def __init__(self, thinking: str, tools: ToolUse | None) -> None:
        self._thinking = thinking
        self._tools = tools
        self._text = ""
        self._told: list[Part] = []
        self.calls = 0

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """What is new; ``last``: nothing is held any more."""
        self._text += text
        parts = [part for part in read(self._text, self._thinking, self._tools, last=last) if part.text or part.name]
        if self._tools is not None and not self._tools.parallel:
            first = next((part for part in parts if part.name), None)
            parts = [part for part in parts if not part.name or part is first]
        deltas, self.calls = [], 0
        for index, part in enumerate(parts):
            before = self._told[index].text if index < len(self._told) else None
            new = part.text[len(before or "") :]
            if part.name:
                if before is None:
                    deltas.append(_opening(self.calls, part.name))
                if new:
                    deltas.append({"tool_calls": [{"index": self.calls, "function": {"arguments": new}}]})
                self.calls += 1
            elif new:
                deltas.append({part.field: new})
        self._told = parts
        return deltas


def _opening(index: int, name: str) -> Delta:
    call = {"index": index, "id": f"chatcmpl-tool-{uuid.uuid4().hex[:16]}", "type": "function"}
    return {"tool_calls": [{**call, "function": {"name": name, "arguments": ""}}]}


def joined(deltas: list[Delta]) -> Delta:
    """The whole message of all deltas."""
    message: Delta = {}
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for field in ("reasoning", "content"):
            if field in delta:
                message[field] = message.get(field, "") + delta[field]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append({"id": call["id"], "type": "function", "function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return {**message, **({"tool_calls": calls} if calls else {})}
