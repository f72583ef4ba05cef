"""Messages on the books channel: bookings in flight, one entry per request, little endian.

message = header(24) + entries; entry = fixed part(72) + n·8 bytes of expected keys
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final
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


@dataclass(frozen=True, slots=True)
class BookEntry:
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


@dataclass(frozen=True, slots=True)
class BookMessage:
    """``writer`` is the gateway's incarnation; ``seq`` counts its messages from 1. For ASK, ``writer`` is asked."""

    kind: Kind
    writer: int
    seq: int
    entries: tuple[BookEntry, ...] = ()


def encode_message(message: BookMessage) -> bytes:
    parts = [_HEADER.pack(VERSION, message.kind, 0, len(message.entries), message.writer, message.seq)]
    for e in message.entries:
        expected = e.expected[:MAX_EXPECTED_KEYS]
        parts.append(
            _ENTRY.pack(
                e.op, _FLAG_STREAMS if e.streams else 0, e.priority, 0, len(expected), 0, e.pod_uid.bytes, e.epoch,
                e.request, e.age_us, min(e.prefill_us, U32_MAX), min(e.context_tokens, U32_MAX),
                min(e.uncached_tokens, U32_MAX), min(e.cached_tokens, U32_MAX), min(e.busy_us, U32_MAX),
            )
        )  # fmt: skip
        parts.append(Struct(f"<{len(expected)}Q").pack(*expected))
    return b"".join(parts)


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
        op, flags, priority, _, n, _, uid, epoch, request, age, *rest = _ENTRY.unpack_from(data, offset)
        offset += _ENTRY.size
        if len(data) < offset + 8 * n:
            raise WireError("books message ends inside its expected keys")
        expected: tuple[int, ...] = Struct(f"<{n}Q").unpack_from(data, offset)
        offset += 8 * n
        if op not in BookOp.__members__.values():
            continue
        prefill, context, uncached, cached, busy = rest
        entries.append(
            BookEntry(
                op=BookOp(op),
                request=request,
                pod_uid=UUID(bytes=uid),
                epoch=epoch,
                age_us=age,
                streams=bool(flags & _FLAG_STREAMS),
                priority=priority,
                prefill_us=prefill,
                context_tokens=context,
                uncached_tokens=uncached,
                cached_tokens=cached,
                busy_us=busy,
                expected=expected,
            )
        )
    return BookMessage(Kind(kind), writer, seq, tuple(entries))
