"""Whatever arrives, a decoder gives a value or raises `WireError`."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_kv.books_wire import decode_message, encode_message
from roundhouse_kv.errors import WireError
from roundhouse_kv.kv_wire import decode_batch, decode_snapshot, encode_batch, encode_snapshot
from roundhouse_kv.records import Lease, Profile, Record, decode_record, encode_record

from tests.contracts.samples import BATCHES, MESSAGES, RECORDS, SNAPSHOTS

Decoder = Callable[[bytes], Any]

BINARY: dict[str, tuple[Decoder, list[bytes]]] = {
    "batch": (decode_batch, [encode_batch(each) for each in BATCHES.values()]),
    "snapshot": (decode_snapshot, [encode_snapshot(each) for each in SNAPSHOTS.values()]),
    "books": (decode_message, [encode_message(each) for each in MESSAGES.values()]),
}
JSON: list[tuple[type[Record], bytes]] = [(type(each), encode_record(each)) for each in RECORDS.values()]


def reads_or_refuses(decode: Decoder, data: bytes) -> None:
    with suppress(WireError):
        decode(data)


@pytest.mark.parametrize("name", BINARY)
def test_every_truncation_is_refused(name: str) -> None:
    decode, samples = BINARY[name]
    for data in samples:
        for length in range(len(data)):
            with pytest.raises(WireError):
                decode(data[:length])


@pytest.mark.parametrize("name", BINARY)
@given(data=st.data())
def test_damaged_bytes_never_do_anything_else(name: str, data: st.DataObject) -> None:
    decode, samples = BINARY[name]
    damaged = bytearray(data.draw(st.sampled_from(samples)))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(damaged) - 1), st.integers(0, 255)), max_size=6)):
        damaged[at] = value
    reads_or_refuses(decode, bytes(damaged))


@pytest.mark.parametrize("name", BINARY)
@given(body=st.binary(max_size=200))
def test_random_bytes_never_do_anything_else(name: str, body: bytes) -> None:
    decode, _ = BINARY[name]
    reads_or_refuses(decode, body)
    reads_or_refuses(decode, b"\x01" + body)


@given(st.sampled_from([kind for kind, _ in JSON]), st.binary(max_size=100))
def test_random_bytes_are_no_record(kind: type[Record], body: bytes) -> None:
    reads_or_refuses(lambda data: decode_record(kind, data), body)


@given(st.sampled_from(JSON), st.data())
def test_damaged_records_never_do_anything_else(sample: tuple[type[Record], bytes], data: st.DataObject) -> None:
    kind, body = sample
    damaged = bytearray(body)
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(damaged) - 1), st.integers(0, 255)), max_size=4)):
        damaged[at] = value
    reads_or_refuses(lambda each: decode_record(kind, each), bytes(damaged))


@pytest.mark.parametrize("kind", [Lease, Profile])
def test_json_nested_too_deep_is_refused(kind: type[Record]) -> None:
    with pytest.raises(WireError):
        decode_record(kind, b'{"v":' + b"[" * 100_000)
