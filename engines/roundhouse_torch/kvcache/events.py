"""What the cache tells the outside, in vLLM's field names (≥ 0.24, map form), so that one decoder serves both
engines.
"""

import msgspec


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="BlockStored", gc=False):
    """Consecutive full blocks that now hold KV.

    ``extra_keys`` per block: the cache_salt in a sequence's first block.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str = "GPU"
    lora_name: str | None = None
    extra_keys: list[list[str] | None]
    group_idx: int = 0
    kv_cache_spec_kind: str = "full_attention"


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="BlockRemoved", gc=False):
    """Blocks whose memory is given to other content."""

    block_hashes: list[int]
    medium: str = "GPU"
    group_idx: int = 0


class AllBlocksCleared(msgspec.Struct, frozen=True, tag_field="type", tag="AllBlocksCleared", gc=False):
    """Nothing is cached any more."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
