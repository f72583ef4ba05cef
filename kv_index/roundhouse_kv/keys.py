"""Prefix keys: chained hashes over 256-byte chunks of the rendered prompt.

``key_i = xxh3_64(chunk_i, seed=key_{i-1})`` with ``key_{-1}`` the root, so equal chunks after different beginnings
never share a key. Key 0 marks an empty slot in the mirror and is written as 1.
"""

from functools import lru_cache
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

CHUNK_BYTES = 256
_CHUNK: Final = Struct(f"{CHUNK_BYTES}s")


@lru_cache(maxsize=4096)
def root_key(profile_digest: str, adapter: str = "", cache_salt: str = "") -> int:
    """Root of the chain of one (profile, adapter as the engine names it, cache_salt)."""
    return xxh3_64_intdigest(f"{profile_digest}\0{adapter}\0{cache_salt}".encode()) or 1


def next_key(chunk: bytes | memoryview, parent: int) -> int:
    """Key of one full chunk of ``CHUNK_BYTES`` bytes that follows ``parent``."""
    return xxh3_64_intdigest(chunk, parent) or 1


def chain_keys(data: bytes, root: int) -> list[int]:
    """Keys of every full chunk of ``data``; a rest shorter than a chunk has none."""
    key, whole = root, len(data) // CHUNK_BYTES * CHUNK_BYTES
    return [key := xxh3_64_intdigest(chunk, key) or 1 for (chunk,) in _CHUNK.iter_unpack(memoryview(data)[:whole])]
