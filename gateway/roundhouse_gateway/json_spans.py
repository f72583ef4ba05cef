"""Where a member of a JSON object lies in its bytes, so that one value can be replaced and the rest stays as it was.

Works on bytes that are known to be one valid JSON object; strings are crossed with ``bytes.find``, not byte by byte.
"""

import json
import re
from typing import Any

import orjson

_BRACKET_OR_QUOTE = re.compile(rb'["\[\]{}]')
_SCALAR = re.compile(rb"[^\s,\]}]*")
_SPACE = re.compile(rb"\s*")


class _Duplicate(ValueError):
    pass


def is_unambiguous(raw: bytes, parsed: dict[str, Any]) -> bool:
    """Every reader of ``raw`` sees the same object: no key twice, at any depth.

    What most clients send (compact JSON) equals its own re-serialisation, which proves it for a microsecond or two.
    """
    if orjson.dumps(parsed) == raw:
        return True
    try:
        json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise _Duplicate


def value_span(raw: bytes, key: str, start: int = 0) -> tuple[int, int] | None:
    """Begin and end of the value of ``key`` in the object that begins at ``start``; None when it has no such key."""
    wanted = orjson.dumps(key)
    position = _skip(raw, start) + 1
    while True:
        position = _skip(raw, position)
        if raw[position : position + 1] != b'"':
            return None  # the closing brace
        end = _string_end(raw, position)
        name = raw[position:end]
        value = _skip(raw, _skip(raw, end) + 1)
        stop = _value_end(raw, value)
        if name == wanted or (b"\\" in name and orjson.loads(name) == key):
            return value, stop
        position = _skip(raw, stop) + 1


def _skip(raw: bytes, position: int) -> int:
    """Past white space."""
    match = _SPACE.match(raw, position)
    assert match is not None
    return match.end()


def _string_end(raw: bytes, start: int) -> int:
    """Past the closing quote of the string that opens at ``start``."""
    end = raw.index(b'"', start + 1)
    while _is_escaped(raw, end):
        end = raw.index(b'"', end + 1)
    return end + 1


def _is_escaped(raw: bytes, position: int) -> bool:
    """An odd number of backslashes stands before ``position``."""
    first = position
    while raw[first - 1] == 0x5C:
        first -= 1
    return (position - first) % 2 == 1


def _value_end(raw: bytes, start: int) -> int:
    opening = raw[start : start + 1]
    if opening == b'"':
        return _string_end(raw, start)
    if opening not in (b"{", b"["):
        match = _SCALAR.match(raw, start)
        assert match is not None
        return match.end()
    depth = 0
    position = start
    while True:
        match = _BRACKET_OR_QUOTE.search(raw, position)
        assert match is not None
        position = match.end()
        found = match.group()
        if found == b'"':
            position = _string_end(raw, match.start())
        elif found in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return position
