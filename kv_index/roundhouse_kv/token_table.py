"""The bytes of each token id, packed for Redis: gateways need them for prompts that come as token ids, and only there.

version (u8 1), then zlib over one entry for each id: u16 length and so many bytes, little endian. Length 65535: the id
spells nothing that can be known (no such token, or one that stands for unknown text), and a prompt's keys end there.
"""

import zlib
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

from roundhouse_kv.errors import WireError

VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024 * 1024
_NOTHING: Final = 0xFFFF
_LENGTH: Final = Struct("<H")


class TokenTable:
    """``len``: how many ids there are."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Sequence[bytes | None]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def spell(self, ids: Sequence[int]) -> bytes:
        """What ``ids`` spell, up to the first that spells nothing known."""
        entries, size = self._entries, len(self._entries)
        spelled: list[bytes] = []
        for number in ids:
            entry = entries[number] if 0 <= number < size else None
            if entry is None:
                break
            spelled.append(entry)
        return b"".join(spelled)


def pack_table(entries: Iterable[bytes | None]) -> bytes:
    packed: list[bytes] = []
    for entry in entries:
        if entry is None or len(entry) >= _NOTHING:
            packed.append(_LENGTH.pack(_NOTHING))
        else:
            packed += (_LENGTH.pack(len(entry)), entry)
    return bytes([VERSION]) + zlib.compress(b"".join(packed))


def unpack_table(data: bytes) -> TokenTable:
    """Raises `WireError`."""
    if not data or data[0] != VERSION:
        raise WireError(f"token table of version {data[0] if data else 'none'}, {VERSION} can be read")
    inflater = zlib.decompressobj()
    try:
        flat = inflater.decompress(data[1:], MAX_BYTES)
    except zlib.error as error:
        raise WireError(f"token table cannot be inflated: {error}") from error
    if not inflater.eof:
        raise WireError("token table is cut off or too big")
    entries: list[bytes | None] = []
    at, end = 0, len(flat)
    while at < end:
        if at + 2 > end:
            raise WireError("token table ends inside an entry")
        length = flat[at] | flat[at + 1] << 8
        at += 2
        if length == _NOTHING:
            entries.append(None)
            continue
        if at + length > end:
            raise WireError("token table ends inside an entry")
        entries.append(flat[at : at + length])
        at += length
    return TokenTable(entries)
