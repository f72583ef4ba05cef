"""One shape of chat as a template renders it, literals with gaps, and the contents that fill them (`render_plan`)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from roundhouse_kv.messages import MARK

MAX_TURNS: Final = 64
EDGE: Final = "\ue0b7"
"""Stands on both sides of a gap's number in what a template makes of a shape."""

_HOLE: Final = re.compile(EDGE + "([0-9]+)([a-z]*)" + EDGE)
_ROLES: Final = ("user", "assistant", "system")
_REWRITTEN_SYSTEM: Final = "x-anthropic-billing-header:"
_PLAIN_FIELDS: Final = frozenset(
    {
        "add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs",
        "continue_final_message", "documents", "prompt_embeds", "reasoning_effort", "tools", "truncate_prompt_tokens",
    }
)  # fmt: skip
"""Fields that change what is rendered; a request with any of them has no plan."""

_Shape = tuple[str, ...]


class Plan:
    """One shape's output: ``pieces`` with gaps, ``slots`` (piece, message, trim) that fill them."""

    __slots__ = ("pieces", "slots", "times")

    def __init__(self, text: str, times: Sequence[tuple[str, str]]) -> None:
        self.times = times
        self.pieces: list[str] = []
        self.slots: list[tuple[int, int, str]] = []
        cut = _HOLE.split(text)
        for at in range(0, len(cut) - 1, 3):
            self.pieces += [cut[at], ""]
            self.slots.append((len(self.pieces) - 1, int(cut[at + 1]), cut[at + 2]))
        self.pieces.append(cut[-1])

    def fill(self, contents: Sequence[str]) -> str:
        pieces = self.pieces.copy()
        for at, index, trim in self.slots:
            content = contents[index]
            pieces[at] = content if not trim else getattr(content, trim)()
        return "".join(pieces)


def read_chat(body: Mapping[str, Any]) -> tuple[_Shape, list[str]] | None:
    """(roles, contents) of a chat with nothing but plain texts in it; None for any other."""
    if not _PLAIN_FIELDS.isdisjoint(body):
        return None
    messages = body.get("messages")
    if type(messages) is not list or not 0 < len(messages) <= MAX_TURNS:
        return None
    roles: list[str] = []
    contents: list[str] = []
    for message in messages:
        if type(message) is not dict or len(message) != 2:
            return None
        role, content = message.get("role"), message.get("content")
        if type(content) is not str or role not in _ROLES or not content.strip():
            return None
        if role == "system" and _REWRITTEN_SYSTEM in content:
            return None
        roles.append(role)
        contents.append(content)
    return tuple(roles), contents


class Plans:
    """Plans of one template, by shape; None for a shape that has none."""

    __slots__ = ("by_shape",)

    def __init__(self) -> None:
        self.by_shape: dict[_Shape, Plan | None] = {}

    def fill(self, body: Mapping[str, Any]) -> str | None:
        """The whole prompt of a chat, when it is all text and its plan is known and does not depend on the time."""
        chat = read_chat(body)
        if chat is None:
            return None
        plan = self.by_shape.get(chat[0])
        if plan is None or plan.times:
            return None
        text = plan.fill(chat[1])
        return None if MARK in text else text
