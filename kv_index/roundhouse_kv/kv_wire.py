"""Packed KV log batches and snapshots: little endian, 8-byte aligned, keys readable without a copy.

batch    = header(56) + sections; section = header(8) + n·8 bytes of keys
snapshot = header(72) + n·8 bytes of keys
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from roundhouse_kv.errors import WireError

VERSION: Final = 1
READABLE: Final = frozenset({1})
FLAG_CLEAR: Final = 1
TIER_GPU: Final = 0

_BATCH = Struct("<BBHI16sQQQQ")
_SECTION = Struct("<BBHI")
_SNAPSHOT = Struct("<BBHI16sQQQQQQ")

Keys = NDArray[np.uint64]


class Op(IntEnum):
    ADD = 1
    REMOVE = 2


@dataclass(frozen=True, slots=True)
class Section:
    """Keys that one replica has gained or lost. ``tier`` 0 is GPU memory."""

    op: Op
    keys: Keys
    tier: int = TIER_GPU


@dataclass(frozen=True, slots=True)
class KvBatch:
    """One entry of the KV log. ``clear``: forget what this pod held before the sections apply."""

    pod_uid: UUID
    epoch: int
    source: int
    seq: int
    time_ms: int
    sections: tuple[Section, ...] = ()
    clear: bool = False


@dataclass(frozen=True, slots=True)
class KvSnapshot:
    """All keys of one pod; covers the log up to ``seq`` of ``source``, written at stream id ``stream_ms-stream_n``."""

    pod_uid: UUID
    epoch: int
    source: int
    seq: int
    stream_ms: int
    stream_n: int
    keys: Keys


def encode_batch(batch: KvBatch) -> bytes:
    parts = [
        _BATCH.pack(
            VERSION, FLAG_CLEAR if batch.clear else 0, len(batch.sections), 0,
            batch.pod_uid.bytes, batch.epoch, batch.source, batch.seq, batch.time_ms,
        )
    ]  # fmt: skip
    for section in batch.sections:
        parts.append(_SECTION.pack(section.op, section.tier, 0, len(section.keys)))
        parts.append(section.keys.astype("<u8", copy=False).tobytes())
    return b"".join(parts)


def decode_batch(data: bytes) -> KvBatch:
    """Raises `WireError` on an unknown version or a truncated message; sections of unknown op are skipped."""
    if len(data) < _BATCH.size:
        raise WireError(f"KV batch of {len(data)} bytes is shorter than its header")
    version, flags, count, _, uid, epoch, source, seq, time_ms = _BATCH.unpack_from(data)
    _check_version("KV batch", version)
    sections: list[Section] = []
    offset = _BATCH.size
    for _ in range(count):
        if len(data) < offset + _SECTION.size:
            raise WireError("KV batch ends inside a section header")
        op, tier, _, n = _SECTION.unpack_from(data, offset)
        offset += _SECTION.size
        keys = _keys(data, offset, n, "KV batch")
        offset += 8 * n
        if op in (Op.ADD, Op.REMOVE):
            sections.append(Section(Op(op), keys, tier))
    return KvBatch(UUID(bytes=uid), epoch, source, seq, time_ms, tuple(sections), bool(flags & FLAG_CLEAR))


def encode_snapshot(snapshot: KvSnapshot) -> bytes:
    header = _SNAPSHOT.pack(
        VERSION, 0, 0, len(snapshot.keys), snapshot.pod_uid.bytes, snapshot.epoch, snapshot.source, snapshot.seq,
        snapshot.stream_ms, snapshot.stream_n, 0,
    )  # fmt: skip
    return header + snapshot.keys.astype("<u8", copy=False).tobytes()


def decode_snapshot(data: bytes) -> KvSnapshot:
    """Raises `WireError` on an unknown version or a truncated message."""
    if len(data) < _SNAPSHOT.size:
        raise WireError(f"KV snapshot of {len(data)} bytes is shorter than its header")
    version, _, _, n, uid, epoch, source, seq, stream_ms, stream_n, _ = _SNAPSHOT.unpack_from(data)
    _check_version("KV snapshot", version)
    return KvSnapshot(
        UUID(bytes=uid), epoch, source, seq, stream_ms, stream_n, _keys(data, _SNAPSHOT.size, n, "KV snapshot")
    )


def as_keys(keys: Sequence[int]) -> Keys:
    return np.array(keys, dtype=np.uint64)


def _keys(data: bytes, offset: int, n: int, what: str) -> Keys:
    if len(data) < offset + 8 * n:
        raise WireError(f"{what} ends inside its keys")
    return np.frombuffer(data, dtype="<u8", count=n, offset=offset)


def _check_version(what: str, version: int) -> None:
    if version not in READABLE:
        raise WireError(f"{what}: version {version}, this reader knows {sorted(READABLE)}")
