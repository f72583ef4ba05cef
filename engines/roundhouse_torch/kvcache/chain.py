"""Names of block contents: a hash chain over token ids.

``name = blake2b(parent's name ‖ token ids as u32)``; the root is the hash of everything else that changes what a
token's KV is or who may share it: model, adapter and cache_salt. BLAKE2b (RFC 7693), because an index that is fooled by
a crafted prompt would give one tenant another's KV; it takes two thirds of SHA-256's time here. Deterministic, so a
restarted engine gives equal content the same name.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import iter_unpack

assert array("I").itemsize == 4
REMEMBERED = 1 << 14
"""Names that are found again faster than computed: prompts are sent again, longer by a turn."""


def root(model: str, adapter: str, salt: str) -> bytes:
    return blake2b("\0".join(("roundhouse-kv-1", model, adapter, salt)).encode()).digest()


def extend(parent: bytes, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Names of the full blocks of ``tokens``, which follow the block named ``parent``."""
    whole = len(tokens) // block_size * block_size
    contents = iter_unpack(f"{block_size * 4}s", memoryview(array("I", tokens))[:whole])
    return [parent := _name(parent, content) for (content,) in contents]


@lru_cache(REMEMBERED)
def _name(parent: bytes, content: bytes) -> bytes:
    return blake2b(parent + content).digest()


def wire_hash(name: bytes) -> int:
    """The unsigned 64 bits by which KV events call a block."""
    return int.from_bytes(name[:8], "big")
