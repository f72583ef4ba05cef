"""KV event frames in vLLM's wire format → events that an agent can apply. Pure.

A payload is msgpack ``[time, [events], rank?]``. An event is a map with a ``type`` (vLLM ≥ 0.24) or an array whose
first element is the type (before); both are read. Hashes may be unsigned, signed or bytes: their low 64 bits count.
Only blocks in GPU memory of the full-attention group matter for prefix reuse; everything else is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import BlocksCleared, BlocksRemoved, BlocksStored, CacheEvent

_MASK: Final = (1 << 64) - 1
_STORED: Final = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind",
)  # fmt: skip
_REMOVED: Final = ("block_hashes", "medium", "group_idx")
_FULL_ATTENTION: Final = frozenset({"full_attention", "mla_attention"})
_decode = msgspec.msgpack.Decoder().decode


class FrameDecoder:
    """Decoder of one engine's frames; it remembers which group is the full-attention one."""

    def __init__(self) -> None:
        self._group: int | None = None
        self.skipped = 0

    def decode(self, payload: bytes, *, reannounced: bool = False) -> tuple[CacheEvent, ...]:
        """Raises `ProbeError` for a payload that is no event batch; single events of unknown shape are left out."""
        try:
            batch = _decode(payload)
            events = batch[1]
            return tuple(found for event in events for found in self._event(event, reannounced))
        except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ProbeError(f"KV event frame of {len(payload)} bytes cannot be read: {error}") from error

    def _event(self, event: Any, reannounced: bool) -> Sequence[CacheEvent]:
        kind, fields = _fields(event)
        if kind == "AllBlocksCleared":
            return (BlocksCleared(),)
        if kind not in ("BlockStored", "BlockRemoved") or not self._counts(fields):
            self.skipped += 1
            return ()
        hashes = tuple(_hash(value) for value in fields["block_hashes"])
        if kind == "BlockRemoved":
            return (BlocksRemoved(hashes),)
        if len(fields["token_ids"]) != len(hashes) * fields["block_size"] or not hashes:
            self.skipped += 1
            return ()
        return _stored(fields, hashes, reannounced)

    def _counts(self, fields: Mapping[str, Any]) -> bool:
        """Whether the event is about GPU memory of this engine, and of the full-attention group."""
        if (fields.get("medium") or "GPU").upper() != "GPU" or (fields.get("locality") or "LOCAL").upper() != "LOCAL":
            return False
        group, kind = fields.get("group_idx"), fields.get("kv_cache_spec_kind")
        if kind is not None and kind not in _FULL_ATTENTION:
            return False
        if kind is not None and self._group is None and group is not None:
            self._group = group
        return group is None or group == (self._group or 0)


def _stored(fields: Mapping[str, Any], hashes: tuple[int, ...], reannounced: bool) -> Sequence[CacheEvent]:
    """One event, cut in two where the first block stands that text cannot spell."""
    size, tokens = int(fields["block_size"]), tuple(fields["token_ids"])
    parent = None if fields.get("parent_block_hash") is None else _hash(fields["parent_block_hash"])
    adapter = fields.get("lora_name") or ""
    extra = fields.get("extra_keys") or [None] * len(hashes)
    own = [key for key in (extra[0] or ()) if key != fields.get("lora_name")]
    salt = own[0] if parent is None and own and isinstance(own[0], str) else ""
    imaged = (i for i, keys in enumerate(extra) if any(not isinstance(key, str) for key in keys or ()))
    strange = (i // size for i, token in enumerate(tokens) if not isinstance(token, int))
    opaque = min(next(imaged, len(hashes)), next(strange, len(hashes)))
    events = []
    if opaque:
        spelled = tokens[: opaque * size]
        events.append(BlocksStored(hashes[:opaque], parent, spelled, size, salt, adapter, False, reannounced))
    if opaque < len(hashes):
        before = hashes[opaque - 1] if opaque else parent
        unspelled = tuple(token if isinstance(token, int) else 0 for token in tokens[opaque * size :])
        events.append(BlocksStored(hashes[opaque:], before, unspelled, size, salt, adapter, True, reannounced))
    return events


def _fields(event: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(event, Mapping):
        return str(event["type"]), event
    names = {"BlockStored": _STORED, "BlockRemoved": _REMOVED}.get(event[0], ())
    return str(event[0]), dict(zip(names, event[1:], strict=False))


def _hash(value: int | bytes) -> int:
    return int.from_bytes(value[-8:], "big") if isinstance(value, bytes) else value & _MASK
