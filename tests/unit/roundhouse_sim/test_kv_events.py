import msgspec
from roundhouse_sim.answer import AnswerWriter
from roundhouse_sim.cache import Change, Cleared, Removed, Stored
from roundhouse_sim.job import Job
from roundhouse_sim.kv_events import NOTHING_YET, EventLog
from roundhouse_sim.tokens import encode

BLOCK = 4


def job(text: str, salt: str = "") -> Job:
    tokens = encode(text)
    return Job(tokens, AnswerWriter(tokens, 0, 0), 8, salt, BLOCK, lambda _: None)


def decoded(payload: bytes) -> list[dict[str, object]]:
    stamp, events, rank = msgspec.msgpack.decode(payload)
    assert (stamp, rank) == (1.5, 0)
    return list(events)


def test_stored_blocks_have_vllms_fields_in_vllms_order() -> None:
    owner = job("abcdefgh")
    (event,) = decoded(EventLog(BLOCK, 10).record([Stored(owner, 0, 2)], 1.5))
    assert list(event.items()) == [
        ("type", "BlockStored"), ("block_hashes", owner.keys), ("parent_block_hash", None),
        ("token_ids", list(b"abcdefgh")), ("block_size", 4), ("lora_id", None), ("medium", "GPU"),
        ("lora_name", None), ("extra_keys", [None, None]), ("group_idx", 0),
        ("kv_cache_spec_kind", "full_attention"),
    ]  # fmt: skip


def test_later_blocks_name_their_parent_and_only_the_first_its_salt() -> None:
    owner = job("abcdefgh", salt="tenant")
    first, second = decoded(EventLog(BLOCK, 10).record([Stored(owner, 0, 1), Stored(owner, 1, 2)], 1.5))
    assert (first["extra_keys"], second["extra_keys"]) == ([["tenant"]], [None])
    assert second["parent_block_hash"] == owner.keys[0]


def test_blocks_of_the_answer_carry_its_tokens() -> None:
    owner = job("abcdef")
    owner.generated = 6
    owner.write_on()
    (event,) = decoded(EventLog(BLOCK, 10).record([Stored(owner, 1, 3)], 1.5))
    assert event["token_ids"] == list(b"ef" + owner.answer.encode())
    assert event["parent_block_hash"] == owner.keys[0]


def test_removals_come_one_event_a_block_and_clearing_alone() -> None:
    log = EventLog(BLOCK, 10)
    owner = job("abcdefgh")
    log.record([Stored(owner, 0, 2)], 1.5)
    events = decoded(log.record([Removed((owner.keys[1], owner.keys[0])), Cleared()], 1.5))
    assert events[:1] == [{"type": "BlockRemoved", "block_hashes": [owner.keys[1]], "medium": "GPU", "group_idx": 0}]
    assert events[2:] == [{"type": "AllBlocksCleared"}]


def test_batches_are_numbered_from_zero_and_the_newest_can_be_replayed() -> None:
    log = EventLog(BLOCK, 3)
    assert log.seq == NOTHING_YET
    payloads = [log.record([Cleared()], float(n)) for n in range(5)]
    assert log.since(0) == list(zip((2, 3, 4), payloads[2:], strict=True))
    assert log.since(4) == [(4, payloads[4])]
    assert log.since(5) == []


def test_snapshot_holds_what_is_present_parents_first_in_as_few_events_as_chains_allow() -> None:
    log = EventLog(BLOCK, 10)
    long, branch, gone = job("abcdefghijkl"), job("abcdWXYZ"), job("other...")
    changes: list[Change] = [Stored(long, 0, 3), Stored(branch, 1, 2), Stored(gone, 0, 2)]
    log.record(changes, 1.5)
    log.record([Removed((gone.keys[1], gone.keys[0]))], 1.5)
    events = decoded(log.snapshot(1.5))
    assert [event["block_hashes"] for event in events] == [long.keys, branch.keys[1:]]
    assert events[1]["parent_block_hash"] == long.keys[0]
    assert events[1]["token_ids"] == list(b"WXYZ")


def test_snapshot_of_nothing_is_an_empty_batch() -> None:
    assert decoded(EventLog(BLOCK, 10).snapshot(1.5)) == []
