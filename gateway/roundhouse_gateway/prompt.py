"""A request's prompt as the router sees it: text, size, prefix keys, and what ties a conversation to its replica.

With a profile the text is what the engine will tokenise; without one it is a plain listing of the messages, good for
comparing prompts with each other but not with what an engine reports.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from roundhouse_kv.errors import RenderError
from roundhouse_kv.keys import chain_keys, root_key
from roundhouse_kv.render import Renderer
from xxhash import xxh3_64_intdigest

from roundhouse_gateway.tokens import TextSize

HISTORY_ROOT: Final = "history"
"""Stands for the profile digest in the root of keys that no engine event can match."""

_NO_PREDICTION = ("prompt_embeds", "truncate_prompt_tokens")


@dataclass
class Prompt:
    """``keys``: prefix keys under the profile ``digest``, empty when there is no prediction. ``exact_tokens``: the
    prompt came as token ids. ``conversation``: the last assistant message, "" when there is none."""

    data: bytes
    size: TextSize
    keys: list[int]
    digest: str
    conversation: str = ""
    exact_tokens: int | None = None
    _affinity: list[int | None] = field(default_factory=list)

    def affinity(self) -> int | None:
        """Hash of the prompt up to the end of the last assistant message; None when this is the first turn."""
        if not self._affinity:
            self._affinity.append(self._hash_conversation() if self.conversation else None)
        return self._affinity[0]

    def _hash_conversation(self) -> int:
        said = self.conversation.encode("utf-8", "replace")
        at = self.data.rfind(said)
        return xxh3_64_intdigest(self.data[: at + len(said)] if at >= 0 else said)


def read_prompt(fields: Mapping[str, Any], *, chat: bool, renderer: Renderer | None) -> Prompt:
    """Never raises: what cannot be rendered has no keys, and the engine will say what is wrong with it."""
    if chat:
        return _chat(fields, renderer)
    return _completion(fields, renderer)


def _chat(fields: Mapping[str, Any], renderer: Renderer | None) -> Prompt:
    messages = fields.get("messages")
    turns = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    conversation = next((_text(m.get("content")) for m in reversed(turns) if m.get("role") == "assistant"), "")
    salt = _salt(fields)
    if renderer is not None and not any(name in fields for name in _NO_PREDICTION):
        try:
            rendered = renderer.chat(fields)
            data = renderer.encode(rendered)
        except RenderError:
            renderer = None
        else:
            digest = renderer.profile.digest
            parts = 0 if rendered.complete else sum(_other_parts(m.get("content")) for m in turns)
            keys = chain_keys(data, root_key(digest, "", salt))
            return Prompt(data, TextSize.of(rendered.text, parts), keys, digest, conversation)
        plain = _plain_chat(turns)
        return Prompt(plain.encode("utf-8", "replace"), TextSize.of(plain), [], "", conversation)
    plain = _plain_chat(turns)
    data = plain.encode("utf-8", "replace")
    size = TextSize.of(plain, sum(_other_parts(m.get("content")) for m in turns))
    return Prompt(data, size, chain_keys(data, root_key(HISTORY_ROOT, "", salt)), HISTORY_ROOT, conversation)


def _completion(fields: Mapping[str, Any], renderer: Renderer | None) -> Prompt:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, list):
        return _prompts(prompt)
    text = prompt if isinstance(prompt, str) else ""
    salt = _salt(fields)
    if renderer is not None and not any(name in fields for name in _NO_PREDICTION):
        try:
            rendered = renderer.completion(text)
            data = renderer.encode(rendered)
        except RenderError:
            pass
        else:
            digest = renderer.profile.digest
            return Prompt(data, TextSize.of(rendered.text), chain_keys(data, root_key(digest, "", salt)), digest)
    data = text.encode("utf-8", "replace")
    keys = chain_keys(data, root_key(HISTORY_ROOT, "", salt)) if renderer is None else []
    return Prompt(data, TextSize.of(text), keys, HISTORY_ROOT if keys else "")


def _prompts(prompts: list[Any]) -> Prompt:
    """Several prompts, or token ids: sizes add up, nothing is predicted."""
    text = "".join(p for p in prompts if isinstance(p, str))
    ids = sum(len(p) if isinstance(p, list) else 1 for p in prompts if isinstance(p, int | list))
    return Prompt(b"", TextSize.of(text), [], "", exact_tokens=ids if ids and not text else None)


def _salt(fields: Mapping[str, Any]) -> str:
    salt = fields.get("cache_salt")
    return salt if isinstance(salt, str) else ""


def _plain_chat(turns: list[dict[str, Any]]) -> str:
    return "".join(f"<{m.get('role')}>\n{_text(m.get('content'))}\n" for m in turns)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return ""


def _other_parts(content: object) -> int:
    """Parts of a message that are no text."""
    if not isinstance(content, list):
        return 0
    return sum(1 for p in content if isinstance(p, dict) and not isinstance(p.get("text"), str))
