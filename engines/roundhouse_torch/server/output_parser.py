"""A chat's text as it comes → OpenAI's fields: ``reasoning``, ``content``, ``tool_calls``.

Text goes through at once, except what may be the beginning of a tag. Whole answers go through the same parser.
"""

from collections.abc import Callable
from typing import Any

from roundhouse_torch.server.tools import CallParser, ToolUse
from roundhouse_torch.tokenizer.stops import overlap

OPEN, CLOSE = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"

Delta = dict[str, Any]
_State = Callable[[bool], bool]


def thinking_of(prompt: str) -> str:
    """What a thinking model does behind this prompt: see `structure.THINKING`."""
    tail = prompt.rstrip()
    return "begun" if tail.endswith(OPEN) else "" if tail.endswith(CLOSE) else "optional"


class OutputParser:
    """``thinking``: a key of `structure.THINKING`, or empty when the model does not think; see `ToolUse`.

    Each state takes what it can from ``_text``, adds to ``_found``, and says whether the next state may go on.
    """

    def __init__(self, thinking: str, tools: ToolUse | None) -> None:
        self._tools = tools
        self._hermes = tools is not None and tools.notation == "hermes"
        self._text = ""
        self._found: list[Delta] = []
        self._call = CallParser(0)
        self._state: _State = {"begun": self._reasoning, "optional": self._start}.get(thinking, self._answer)
        self.calls = 0

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """Deltas; ``last``: nothing is held any more."""
        self._text += text
        while self._state(last):
            pass
        found, self._found = self._found, []
        return found

    def _start(self, last: bool) -> bool:
        text = self._text.lstrip()
        if text.startswith(OPEN):
            self._text = text[len(OPEN) :]
            self._state = self._reasoning
        elif OPEN.startswith(text) and not last:
            return False
        else:
            self._state = self._answer
        return True

    def _reasoning(self, last: bool) -> bool:
        thought, closed, rest = self._text.partition(CLOSE)
        if closed:
            self._emit("reasoning", thought)
            self._text, self._state = rest, self._gap
            return True
        self._pass("reasoning", CLOSE, last)
        return False

    def _gap(self, last: bool) -> bool:
        """Blank lines between thought and answer."""
        self._text = self._text.lstrip("\n")
        if not self._text and not last:
            return False
        self._state = self._answer
        return True

    def _answer(self, last: bool) -> bool:
        """The beginning of the answer proper."""
        if self._tools is None or self._hermes:
            self._state = self._content
            return True
        text = self._text.lstrip()
        if PYTHON_TAG.startswith(text) and not last:
            return False
        text = text.removeprefix(PYTHON_TAG).lstrip()
        self._text, self._state = (text, self._calling) if text.startswith("{") else (self._text, self._content)
        return True

    def _content(self, last: bool) -> bool:
        before, opened, rest = self._text.partition(CALL) if self._hermes else (self._text, "", "")
        if opened:
            self._emit("content", before.rstrip())
            self._text, self._state = rest, self._calling
            return True
        self._pass("content", CALL if self._hermes else "", last)
        return False

    def _calling(self, last: bool) -> bool:
        deltas, rest = self._call.push(self._text)
        self._text = ""
        if not self._is_extra:
            self._found += [{"tool_calls": [delta]} for delta in deltas]
        if rest is None and not last:
            return False
        if self._call.named:
            self.calls += 1
            self._text, self._state = rest or "", self._behind
        else:  # no call after all
            self._emit("content", (CALL if self._hermes else "") + self._call.body)
            self._state = self._content
        self._call = CallParser(self.calls)
        return True

    @property
    def _is_extra(self) -> bool:
        return self._tools is not None and not self._tools.parallel and self.calls > 0

    def _behind(self, last: bool) -> bool:
        """Behind a call: its closing tag or separator, then another call or text."""
        text = self._text.lstrip()
        mark = CALL_END if self._hermes else ";"
        if mark.startswith(text) and text != mark and not last:
            return False
        self._text, self._state = text.removeprefix(mark), self._between
        return True

    def _between(self, last: bool) -> bool:
        self._text = self._text.lstrip()
        if not self._text:
            return False
        self._state = self._content if self._hermes else self._answer
        return True

    def _pass(self, field: str, tag: str, last: bool) -> None:
        shown = self._text
        if tag and not last:
            shown = shown[: len(shown) - overlap(shown, tag)]
            shown = shown.rstrip() if tag == CALL else shown
        self._emit(field, shown)
        self._text = self._text[len(shown) :]

    def _emit(self, field: str, text: str) -> None:
        if text:
            self._found.append({field: text})


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
