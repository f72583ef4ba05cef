"""Names of block contents: a hash chain over token ids.

``name = blake2b(parent's name ‖ token ids as u32)``; the root is the hash of everything else that changes what a
token's KV is or who may share it: model, adapter and cache_salt. BLAKE2b (RFC 7693), because an index that is fooled by
a crafted prompt would give one tenant another's KV; it takes two thirds of SHA-256's time here. Deterministic, so a
restarted engine gives equal content the same name.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from struct import iter_unpack

assert array("I").itemsize == 4


def root(model: str, adapter: str, salt: str) -> bytes:
    return blake2b("\0".join(("roundhouse-kv-1", model, adapter, salt)).encode()).digest()


def extend(parent: bytes, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Names of the full blocks of ``tokens``, which follow the block named ``parent``."""
    whole = len(tokens) // block_size * block_size
    names: list[bytes] = []
    append = names.append
    for (content,) in iter_unpack(f"{block_size * 4}s", array("I", tokens[:whole]).tobytes()):
        parent = blake2b(parent + content).digest()
        append(parent)
    return names


def wire_hash(name: bytes) -> int:
    """The unsigned 64 bits by which KV events call a block."""
    return int.from_bytes(name[:8], "big")
