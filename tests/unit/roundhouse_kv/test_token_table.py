"""Token tables on their way through Redis."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_kv.errors import WireError
from roundhouse_kv.token_table import pack_table, unpack_table

ENTRIES = [b"a", b"", None, "路".encode(), b" word"]
GOLDEN = "01789c6364486460f8ff9f99e1c5f6f5ac0c0ae5f94529003bcb0693"


@given(st.lists(st.none() | st.binary(max_size=300)))
def test_what_is_packed_is_unpacked(entries: list[bytes | None]) -> None:
    table = unpack_table(pack_table(entries))
    assert len(table) == len(entries)
    for number, entry in enumerate(entries):
        assert table.spell([number]) == (entry or b"")


def test_the_golden_bytes_are_read() -> None:
    table = unpack_table(bytes.fromhex(GOLDEN))
    assert [table.spell([number]) or None for number in range(5)] == [entry or None for entry in ENTRIES]


def test_a_prompt_is_spelled_up_to_the_first_id_that_spells_nothing_known() -> None:
    table = unpack_table(pack_table(ENTRIES))
    assert table.spell([0, 1, 4, 3]) == "a word路".encode()
    for unknown in (2, 5, -1, 10**9):
        assert table.spell([4, 0, unknown, 0]) == b" worda"


def test_an_entry_too_long_for_the_wire_spells_nothing_known() -> None:
    assert unpack_table(pack_table([b"x" * 65535, b"y"])).spell([1, 0, 1]) == b"y"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "version none"),
        (b"\x02" + zlib.compress(b""), "version 2"),
        (b"\x01junk", "cannot be inflated"),
        (pack_table(ENTRIES)[:-6], "cut off"),
        (b"\x01" + zlib.compress(b"\x05"), "ends inside an entry"),
        (b"\x01" + zlib.compress(b"\x05\x00abc"), "ends inside an entry"),
    ],
)
def test_what_cannot_be_read_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        unpack_table(data)
