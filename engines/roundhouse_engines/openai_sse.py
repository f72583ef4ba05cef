"""The SSE and usage shapes that engines with an OpenAI-compatible server share.

An event is one or more ``data:`` lines up to a blank line. Its JSON is parsed only when a cheap substring says that it
may be more than a chunk of text: inside a JSON string every quote is escaped, so the raw bytes ``"error"`` can only be
a key or a whole value.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from roundhouse_engines.dialect import Mark, Usage
from roundhouse_engines.openai_usage import decode_answer

_CUT = frozenset({"abort", "error"})


@dataclass(frozen=True, slots=True)
class OpenAiSse:
    """A `Dialect` for an engine that answers as vLLM does."""

    kind: str
    control_fields: frozenset[str]
    control_headers: frozenset[bytes]

    def plain(self, block: bytes) -> bool:
        return not (
            block.find(b"[DONE]") >= 0  # for bytes, ``in`` first tries a number
            or block.find(b'"error"') >= 0
            or block.find(b'"abort"') >= 0
            or (block.find(b'"usage"') >= 0 and block.count(b'"usage"') != block.count(b'"usage":null'))
        )

    def mark(self, event: bytes) -> Mark:
        if b"[DONE]" in event and event_data(event).strip() == b"[DONE]":
            return Mark.DONE
        if b'"error"' in event or b'"abort"' in event:
            return _mark_of_failure(_parse(event_data(event)))
        if b'"usage"' in event and (b'"choices":[]' in event or b'"choices": []' in event):
            chunk = _parse(event_data(event))
            if chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict):
                return Mark.USAGE
        return Mark.DATA

    def usage(self, data: bytes) -> Usage | None:
        whole = data.startswith(b"{")
        if not whole and b'"usage"' not in data:
            return None
        try:
            counts = decode_answer(data if whole else event_data(data) or data).usage
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if counts is None or counts.prompt_tokens < 0:
            return None
        details = counts.prompt_tokens_details
        cached = details.cached_tokens if details is not None else None
        return Usage(counts.prompt_tokens, max(0, counts.completion_tokens), cached)


def event_data(event: bytes) -> bytes:
    """The data of one SSE event: its ``data:`` lines joined by newlines, one leading space of each removed."""
    lines = []
    for line in event.splitlines():
        if line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
    return b"\n".join(lines)


def _mark_of_failure(chunk: dict[str, Any]) -> Mark:
    if chunk.get("error") is not None:
        return Mark.ERROR
    choices = chunk.get("choices")
    if isinstance(choices, list) and any(isinstance(c, dict) and c.get("finish_reason") in _CUT for c in choices):
        return Mark.ABORT
    if choices == [] and isinstance(chunk.get("usage"), dict):
        return Mark.USAGE
    return Mark.DATA


def _parse(data: bytes) -> dict[str, Any]:
    """The JSON object in ``data``; empty when it is anything else."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}
