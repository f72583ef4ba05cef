import json
from typing import Any

import msgspec
import pytest
from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import BlocksCleared, BlocksRemoved, BlocksStored
from roundhouse_engines.vllm.frames import FrameDecoder

# Payloads of vLLM 0.32.0: cache_salt and session id; bytes hashes; a LoRA adapter.
SALTED = bytes.fromhex(
    "93cb41dac36195044f65918ca474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf1cd936a2dcd17658cf97e0ac9ed5"
    "e19f3fb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc00406465666768696a6b6c6d6e6f70717273747576777879"
    "7a7b7c7d7e7fcc80cc81cc82cc83cc84cc85cc86cc87cc88cc89cc8acc8bcc8ccc8dcc8ecc8fcc90cc91cc92cc93cc94cc95cc96cc97cc98cc"
    "99cc9acc9bcc9ccc9dcc9ecc9fcca0cca1cca2cca3aa626c6f636b5f73697a6520a76c6f72615f6964c0a66d656469756da3475055a96c6f72"
    "615f6e616d65c0aa65787472615f6b6579739291a874656e616e742d41c0a967726f75705f69647800b26b765f63616368655f737065635f6b"
    "696e64ae66756c6c5f617474656e74696f6eaa73657373696f6e5f6964a6736573732d3900"
)


def frame(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def stored(**changes: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": list(range(8)),
        "block_size": 4, "lora_id": None, "medium": "GPU", "lora_name": None, **changes,
    }  # fmt: skip


def decode(*events: object) -> tuple[object, ...]:
    return FrameDecoder().decode(frame(*events))


def test_a_recorded_frame_with_a_salt() -> None:
    (event,) = FrameDecoder().decode(SALTED)
    assert event == BlocksStored(
        (2078752776125511256, 10943936892703448895), None, tuple(range(100, 164)), 32, salt="tenant-A"
    )


def test_map_and_array_form_read_alike() -> None:
    array = ["BlockStored", [1, 2], None, list(range(8)), 4, None, "GPU", None, [["salt"], None], 0, "full_attention"]
    mapped = stored(extra_keys=[["salt"], None], group_idx=0, kv_cache_spec_kind="full_attention")
    assert decode(array) == decode(mapped) == (BlocksStored((1, 2), None, tuple(range(8)), 4, salt="salt"),)


def test_arrays_may_end_early() -> None:
    assert decode(["BlockStored", [1, 2], None, list(range(8)), 4]) == (BlocksStored((1, 2), None, tuple(range(8)), 4),)
    assert decode(["BlockRemoved", [7]], ["AllBlocksCleared"]) == (BlocksRemoved((7,)), BlocksCleared())


def test_hashes_are_unsigned_64_bits_whatever_their_form() -> None:
    digest = bytes(range(24)) + (2**64 - 2).to_bytes(8, "big")
    for value in (2**64 - 2, -2, digest):
        assert decode({"type": "BlockRemoved", "block_hashes": [value], "medium": None}) == (
            BlocksRemoved((2**64 - 2,)),
        )


def test_a_parent_that_is_bytes_is_normalised_too() -> None:
    (event,) = decode(stored(parent_block_hash=bytes(31) + b"\x09"))
    assert isinstance(event, BlocksStored)
    assert event.parent == 9


def test_an_adapter_is_no_salt() -> None:
    (event,) = decode(stored(lora_name="lora", extra_keys=[["lora"], ["lora"]]))
    assert event == BlocksStored((1, 2), None, tuple(range(8)), 4, adapter="lora")


def test_other_memory_other_groups_and_partial_blocks_are_left_out() -> None:
    decoder = FrameDecoder()
    events = (
        stored(medium="CPU"), stored(locality="REMOTE"), stored(group_idx=1, kv_cache_spec_kind="sliding_window"),
        stored(token_ids=[1, 2, 3]), {"type": "BlockRemoved", "block_hashes": [1], "medium": "STORAGE"},
        {"type": "SomethingNew"},
    )  # fmt: skip
    assert decoder.decode(frame(*events)) == ()
    assert decoder.skipped == len(events)


def test_removals_count_in_the_group_of_full_attention() -> None:
    decoder = FrameDecoder()
    decoder.decode(frame(stored(group_idx=1, kv_cache_spec_kind="full_attention")))
    removed = [{"type": "BlockRemoved", "block_hashes": [n], "medium": "GPU", "group_idx": n} for n in (0, 1)]
    assert decoder.decode(frame(*removed)) == (BlocksRemoved((1,)),)


def test_an_event_is_cut_where_an_image_begins() -> None:
    first, second = decode(stored(extra_keys=[None, [["image-hash", 0]]]))
    assert first == BlocksStored((1,), None, (0, 1, 2, 3), 4)
    assert second == BlocksStored((2,), 1, (4, 5, 6, 7), 4, opaque=True)


def test_tokens_that_are_no_ids_are_opaque() -> None:
    (event,) = decode(stored(token_ids=["x", *range(7)]))
    assert isinstance(event, BlocksStored)
    assert event.opaque


def test_a_snapshot_is_reannounced() -> None:
    (event,) = FrameDecoder().decode(frame(stored()), reannounced=True)
    assert isinstance(event, BlocksStored)
    assert event.reannounced


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"text", json.dumps([1, []]).encode(), frame(5), frame({"type": "BlockStored"})]
)
def test_what_is_no_event_batch_is_a_probe_error(payload: bytes) -> None:
    with pytest.raises(ProbeError):
        FrameDecoder().decode(payload)
