"""Every wire format against its golden bytes. Who breaks one needs a new major version in docs/contracts.md."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from roundhouse_kv.books_wire import decode_message, encode_message
from roundhouse_kv.errors import WireError
from roundhouse_kv.keys import chain_keys, root_key
from roundhouse_kv.kv_wire import KvBatch, KvSnapshot, decode_batch, decode_snapshot, encode_batch, encode_snapshot
from roundhouse_kv.names import Installation
from roundhouse_kv.records import RECORD_VERSION, Profile, Record, decode_record, encode_record

from tests.contracts.samples import BATCHES, KEYS, MESSAGES, POD, RECORDS, SNAPSHOTS

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def key_lists(value: KvBatch | KvSnapshot) -> list[list[int]]:
    if isinstance(value, KvSnapshot):
        return [value.keys.tolist()]
    return [section.keys.tolist() for section in value.sections]


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_the_golden_json(name: str) -> None:
    record = RECORDS[name]
    data = json.dumps(golden("records")[name], ensure_ascii=False, separators=(",", ":")).encode()
    assert encode_record(record) == data
    assert decode_record(type(record), data) == record


@pytest.mark.parametrize("name", BATCHES)
def test_batches_are_the_golden_bytes(name: str) -> None:
    batch, data = BATCHES[name], bytes.fromhex(golden("kv")[name])
    assert encode_batch(batch) == data
    read = decode_batch(data)
    assert key_lists(read) == key_lists(batch)
    assert encode_batch(read) == data


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_snapshots_are_the_golden_bytes(name: str) -> None:
    snapshot, data = SNAPSHOTS[name], bytes.fromhex(golden("kv")[name])
    assert encode_snapshot(snapshot) == data
    read = decode_snapshot(data)
    assert key_lists(read) == key_lists(snapshot)
    assert (read.pod_uid, read.epoch, read.source, read.seq) == (POD, 3, 4, snapshot.seq)


@pytest.mark.parametrize("name", MESSAGES)
def test_books_messages_are_the_golden_bytes(name: str) -> None:
    data = bytes.fromhex(golden("books")[name])
    assert encode_message(MESSAGES[name]) == data
    assert decode_message(data) == MESSAGES[name]


def test_names_are_the_golden_names() -> None:
    installation = Installation("ns/release")
    keys = installation.service("team-a", "llama")
    assert golden("names") == {
        "catalogue": installation.catalogue,
        "catalogueChannel": installation.catalogue_channel,
        "term": installation.term,
        "gateway": installation.gateway(255),
        "gatewaysPattern": installation.gateways_pattern,
        "lease": keys.lease("u"),
        "leaseChannel": keys.lease_channel,
        "profile": keys.profile("d"),
        "token_table": keys.token_table("d"),
        "kvLog": keys.kv_log,
        "kvSnapshot": keys.kv_snapshot(str(POD)),
        "booksChannel": keys.books_channel,
        "demand": keys.demand(255),
        "wakeChannel": keys.wake_channel,
    }


def test_keys_and_roots_are_the_golden_numbers() -> None:
    root = root_key("0123456789abcdef0123456789abcdef", "lora-a", "tenant")
    data = bytes(range(256)) + b"\xff" * 256 + b"rest"
    assert golden("keys") == {
        "root": root,
        "rootPlain": root_key("0123456789abcdef0123456789abcdef"),
        "chain": chain_keys(data, root),
    }


def test_a_profile_is_named_by_its_golden_digest() -> None:
    profile = RECORDS["profile-full"]
    assert isinstance(profile, Profile)
    assert profile.digest == golden("keys-of-profiles")["profile-full"]


@pytest.mark.parametrize("name", RECORDS)
def test_records_with_unknown_fields_are_read(name: str) -> None:
    record = RECORDS[name]
    wider = {**golden("records")[name], "newField": {"deep": [1]}}
    assert decode_record(type(record), json.dumps(wider).encode()) == record


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("version", [2, 255])
def test_records_of_another_version_are_refused(name: str, version: int) -> None:
    with pytest.raises(WireError, match=f"version {version}"):
        decode_record(type(RECORDS[name]), json.dumps({**golden("records")[name], "v": version}).encode())


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_the_version_before_are_read(name: str) -> None:
    record = RECORDS[name]
    older = {**golden("records")[name], "v": RECORD_VERSION - 1}
    assert decode_record(type(record), json.dumps(older).encode()) == msgspec.structs.replace(record, v=0)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"v":"1"}', b"\xff", b'{"v":1}'])
def test_records_that_are_no_such_json_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="Lease"):
        decode_record(type(RECORDS["lease-full"]), data)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_binary_messages_of_another_version_are_refused(version: int) -> None:
    for decode, data in (
        (decode_batch, encode_batch(BATCHES["batch"])),
        (decode_snapshot, encode_snapshot(SNAPSHOTS["snapshot"])),
        (decode_message, encode_message(MESSAGES["delta"])),
    ):
        with pytest.raises(WireError, match=f"version {version}"):
            decode(bytes([version]) + data[1:])  # type: ignore[operator]


def test_sections_of_unknown_operations_are_skipped() -> None:
    data = bytearray(encode_batch(BATCHES["batch"]))
    data[56] = 9
    assert key_lists(decode_batch(bytes(data))) == [[5]]


def test_book_entries_of_unknown_operations_are_skipped() -> None:
    data = bytearray(encode_message(MESSAGES["delta"]))
    data[24] = 9
    assert decode_message(bytes(data)).entries == MESSAGES["delta"].entries[1:]


def test_bytes_behind_the_end_are_ignored() -> None:
    assert key_lists(decode_batch(encode_batch(BATCHES["batch"]) + b"more")) == key_lists(BATCHES["batch"])
    assert decode_snapshot(encode_snapshot(SNAPSHOTS["snapshot"]) + b"more").keys.tolist() == list(KEYS)
    assert decode_message(encode_message(MESSAGES["delta"]) + b"more") == MESSAGES["delta"]


def test_a_service_entry_is_keyed_by_namespace_and_name() -> None:
    entry: Any = RECORDS["service-entry"]
    assert entry.key == "team-a/llama"
    assert isinstance(entry, Record)
