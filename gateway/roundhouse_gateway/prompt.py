"""A request's prompt as the router sees it: bytes, size, prefix keys, and what ties a conversation to its replica.

With a profile the bytes are what the engine will tokenise; without one they are a plain listing of the messages, good
for comparing prompts with each other but not with what an engine reports. A request that cannot be rendered under its
profile has no keys: nothing is predicted for it, and the engine will say what is wrong with it.
"""

from collections.abc import Mapping
from typing import Any, Final

from roundhouse_kv.errors import RenderError
from roundhouse_kv.keys import CHUNK_BYTES, chain_keys, root_key
from roundhouse_kv.render import Renderer
from roundhouse_kv.token_table import TokenTable
from xxhash import xxh3_64_intdigest

from roundhouse_gateway.tokens import Estimate, TextSize, TokenRatios, text_size

CHAT: Final = "/v1/chat/completions"
HISTORY_ROOT: Final = "history"
"""Stands for the profile digest in the root of keys that no engine event can match."""

NO_TABLES: Final[Mapping[str, TokenTable]] = {}


class Prompt:
    """``keys``: prefix keys, none when nothing can be predicted. ``conversation``: the last assistant message, "" when
    there is none. ``exact_tokens``: the prompt came as token ids. ``tokens``: their number, or its `estimate`."""

    __slots__ = ("_estimate", "conversation", "data", "exact_tokens", "keys", "size", "tokens")

    def __init__(
        self, data: bytes, size: TextSize, keys: list[int], conversation: str = "", exact_tokens: int | None = None
    ) -> None:
        self.data = data
        self.size = size
        self.keys = keys
        self.conversation = conversation
        self.exact_tokens = exact_tokens
        self.tokens = exact_tokens or 1

    def estimate(self, ratios: TokenRatios) -> None:
        """Set ``tokens``, and what `cached_tokens` goes by."""
        if self.exact_tokens is None:
            self._estimate = ratios.estimate(self.size)
            self.tokens = self._estimate.tokens
        else:
            ratio = self.exact_tokens / max(1, self.size.bytes)
            self._estimate = Estimate(self.exact_tokens, self.size, ratio, ratio)

    def cached_tokens(self, matched_bytes: int, block_size: int) -> int:
        return self._estimate.cached_tokens(matched_bytes, block_size, self.data)

    def affinity(self) -> int | None:
        """Hash of the prompt up to the end of the last assistant message; None when this is the first turn."""
        if not self.conversation:
            return None
        said = self.conversation.encode("utf-8", "replace")
        at = self.data.rfind(said)
        return xxh3_64_intdigest(self.data[: at + len(said)] if at >= 0 else said)


def read_prompt(
    fields: Mapping[str, Any],
    path: str,
    renderer: Renderer | None,
    digest: str,
    tables: Mapping[str, TokenTable] = NO_TABLES,
) -> Prompt:
    """Never raises. ``digest`` names the profile that ``renderer`` was made of; ``tables``: token tables by profile."""
    if path == CHAT and renderer is not None and renderer.encode_text is not None:
        planned: str | None = renderer.known_plans.fill(fields)
        if planned is None:
            planned = renderer.planned(fields)
        if planned is not None:
            turns = fields["messages"]
            plain = renderer.encodes_plainly and planned.isascii()
            return _whole(
                planned,
                planned.encode() if plain else renderer.encode_text(planned),
                _last_said(turns) if len(turns) > 1 else "",
                root_key(digest, "", _salt(fields)),
            )
    if path != CHAT:
        prompt = fields.get("prompt")
        if isinstance(prompt, list):
            ids = _ids(prompt)
            if ids:
                return _of_ids(ids, tables.get(digest) if renderer is not None else None, digest, _salt(fields))
            if len(prompt) != 1 or not isinstance(prompt[0], str):
                return _several(prompt)
            fields = {**fields, "prompt": prompt[0]}
    turns = _turns(fields) if path == CHAT else []
    said = _last_said(turns) if len(turns) > 1 else ""
    salt = _salt(fields)
    if renderer is not None:
        try:
            rendered = renderer.render(fields, path)
            data = renderer.encode(rendered)
        except RenderError:
            digest = ""
        else:
            parts = 0 if rendered.complete else sum(map(_other_parts, turns))
            return Prompt(data, text_size(rendered.text, parts), chain_keys(data, root_key(digest, "", salt)), said)
    else:
        digest = HISTORY_ROOT
    listed: Any = fields.get("prompt")
    if turns:
        listed = "".join([f"<{turn.get('role')}>\n{_text(turn)}\n" for turn in turns])
    text = listed if isinstance(listed, str) else ""
    data = text.encode("utf-8", "replace")
    keys = chain_keys(data, root_key(digest, "", salt)) if digest and len(data) >= CHUNK_BYTES else []
    return Prompt(data, text_size(text, sum([_other_parts(turn) for turn in turns])), keys, said)


def _whole(text: str, data: bytes, said: str, root: int) -> Prompt:
    return Prompt(data, text_size(text), chain_keys(data, root), said)


def _salt(fields: Mapping[str, Any]) -> str:
    salt = fields.get("cache_salt")
    return salt if isinstance(salt, str) else ""


def _ids(prompt: list[Any]) -> list[int]:
    """The token ids of a single prompt that came as such; else none."""
    ids = prompt[0] if len(prompt) == 1 and isinstance(prompt[0], list) else prompt
    return ids if all(type(each) is int for each in ids) else []


def _of_ids(ids: list[int], table: TokenTable | None, digest: str, salt: str) -> Prompt:
    """Token ids have keys where it is known what they spell. Ids that the tokenizer would not have made of that text
    look cached and are not; the agent leaves them out of the index, so this errs for such prompts alone."""
    data = table.spell(ids) if table is not None else b""
    keys = chain_keys(data, root_key(digest, "", salt)) if data else []
    return Prompt(data, TextSize(len(data)), keys, exact_tokens=len(ids))


def _several(prompts: list[Any]) -> Prompt:
    """Several prompts: sizes add up, nothing is predicted."""
    texts: list[str] = []
    ids = 0
    for prompt in prompts:
        if isinstance(prompt, str):
            texts.append(prompt)
        elif isinstance(prompt, list):
            ids += len(prompt)
        elif isinstance(prompt, int):
            ids += 1
    text = "".join(texts)
    return Prompt(b"", text_size(text), [], exact_tokens=ids if ids and not text else None)


def _last_said(turns: list[dict[str, Any]]) -> str:
    for turn in turns[::-1]:
        if turn.get("role") == "assistant":
            return _text(turn)
    return ""


def _turns(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = fields.get("messages")
    return [turn for turn in messages if isinstance(turn, dict)] if isinstance(messages, list) else []


def _text(turn: Mapping[str, Any]) -> str:
    content = turn.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return ""


def _other_parts(turn: Mapping[str, Any]) -> int:
    """Parts of a message that are no text."""
    content = turn.get("content")
    if not isinstance(content, list):
        return 0
    return sum(1 for p in content if isinstance(p, dict) and not isinstance(p.get("text"), str))
