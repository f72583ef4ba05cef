"""Messages on the books channel: bookings in flight, one entry per request, little endian.

message = header(24) + entries; entry = fixed part(72) + n·8 bytes of expected keys
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from struct import Struct, pack, unpack_from
from typing import Final, NamedTuple
from uuid import UUID

from roundhouse_kv.errors import WireError

VERSION: Final = 1
READABLE: Final = frozenset({1})
MAX_EXPECTED_KEYS: Final = 128

_HEADER = Struct("<BBHIQQ")
_ENTRY = Struct("<BBbBHH16sQQQIIIII4x")
_FLAG_STREAMS = 1
U32_MAX: Final = 0xFFFFFFFF


class Kind(IntEnum):
    """DELTA: entries since the last message. TABLE: every open booking of the writer. ASK: please send your table."""

    DELTA = 0
    TABLE = 1
    ASK = 2


class BookOp(IntEnum):
    """PICK: sent, unanswered. FIRST: first event seen, now only its context counts. END: over."""

    PICK = 1
    FIRST = 2
    END = 3


_OPS = {op.value: op for op in BookOp}


class BookEntry(NamedTuple):
    """One booking. Seconds travel as microseconds, clipped to u32 (71 minutes); ``age_us`` counts since the pick.

    At FIRST or END ``uncached_tokens``, ``cached_tokens`` and ``busy_us`` carry the learning sample; 0 busy_us = none.
    In a TABLE the op tells the booking's state.
    """

    op: BookOp
    request: int
    pod_uid: UUID
    epoch: int
    age_us: int = 0
    streams: bool = True
    priority: int = 0
    prefill_us: int = 0
    context_tokens: int = 0
    uncached_tokens: int = 0
    cached_tokens: int = 0
    busy_us: int = 0
    expected: tuple[int, ...] = ()


class BookMessage(NamedTuple):
    """``writer`` is the gateway's incarnation; ``seq`` counts its messages from 1. For ASK, ``writer`` is asked."""

    kind: Kind
    writer: int
    seq: int
    entries: tuple[BookEntry, ...] = ()


def pack_header(kind: Kind, entries: int, writer: int, seq: int) -> bytes:
    return _HEADER.pack(VERSION, kind, 0, entries, writer, seq)


pack_entry = _ENTRY.pack
"""For a writer that need not make a `BookEntry` of each entry first: fields in the order of the wire."""


def pack_keys(keys: Sequence[int]) -> bytes:
    return pack(f"<{len(keys)}Q", *keys)


def encode_message(message: BookMessage) -> bytes:
    kind, writer, seq, entries = message
    parts = [_HEADER.pack(VERSION, kind, 0, len(entries), writer, seq)]
    for op, request, pod, epoch, age, streams, priority, *numbers, expected in entries:
        if max(numbers) > U32_MAX:
            numbers = [min(number, U32_MAX) for number in numbers]
        n = min(len(expected), MAX_EXPECTED_KEYS)
        parts.append(_ENTRY.pack(op, streams, priority, 0, n, 0, pod.bytes, epoch, request, age, *numbers))
        if n:
            parts.append(pack(f"<{n}Q", *expected[:n]))
    return b"".join(parts)


def is_echo(data: bytes, me: int) -> bool:
    """A message that ``me`` wrote itself, as a channel gives it back; told without decoding it."""
    if len(data) < _HEADER.size:
        return False
    _, kind, _, _, writer, _ = _HEADER.unpack_from(data)
    return bool(writer == me and kind != Kind.ASK)


def decode_message(data: bytes) -> BookMessage:
    """Raises `WireError` on an unknown version or kind, or a truncated message."""
    if len(data) < _HEADER.size:
        raise WireError(f"books message of {len(data)} bytes is shorter than its header")
    version, kind, _, count, writer, seq = _HEADER.unpack_from(data)
    if version not in READABLE:
        raise WireError(f"books message: version {version}, this reader knows {sorted(READABLE)}")
    if kind not in Kind.__members__.values():
        raise WireError(f"books message: unknown kind {kind}")
    entries: list[BookEntry] = []
    offset = _HEADER.size
    for _ in range(count):
        if len(data) < offset + _ENTRY.size:
            raise WireError("books message ends inside an entry")
        op, flags, priority, _, n, _, uid, epoch, request, age, *numbers = _ENTRY.unpack_from(data, offset)
        offset += _ENTRY.size
        if len(data) < offset + 8 * n:
            raise WireError("books message ends inside its expected keys")
        expected = unpack_from(f"<{n}Q", data, offset) if n else ()
        offset += 8 * n
        known = _OPS.get(op)
        if known is not None:
            streams = bool(flags & _FLAG_STREAMS)
            prefill, context, uncached, cached, busy = numbers
            entries.append(
                BookEntry(
                    known, request, _uuid(uid), epoch, age, streams, priority, prefill, context, uncached, cached, busy,
                    expected,
                )
            )  # fmt: skip
    return BookMessage(Kind(kind), writer, seq, tuple(entries))


@lru_cache(maxsize=4096)
def _uuid(data: bytes) -> UUID:
    """Pods are few and entries many; one object for a pod is also found faster in a dict."""
    return UUID(bytes=data)
