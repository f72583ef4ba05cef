"""KV events: vLLM's bytes, what they add up to, and the answers to late agents."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from roundhouse_torch.errors import SettingsError
from roundhouse_torch.events.mirror import MAX_RUN, CacheMirror
from roundhouse_torch.events.publisher import NONE, EventBatch, EventPublisher
from roundhouse_torch.kvcache import chain
from roundhouse_torch.kvcache.blocks import BlockPool
from roundhouse_torch.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.scheduler.scheduler import Limits, Scheduler
from roundhouse_torch.scheduler.sequence import Sequence

CAPTURED: dict[str, str] = json.loads((Path(__file__).parent / "data/vllm_0_32_kv_events.json").read_text())


class Received(msgspec.Struct, array_like=True):
    ts: float
    events: list[CacheEvent]
    rank: int = 0


def stored(*hashes: int, parent: int | None = None, salt: str | None = None) -> BlockStored:
    extra: list[list[str] | None] = [[salt] if salt and index == 0 else None for index in range(len(hashes))]
    tokens = [token for hash in hashes for token in (hash, hash + 1)]
    return BlockStored(
        block_hashes=list(hashes), parent_block_hash=parent, token_ids=tokens, block_size=2, extra_keys=extra
    )


@pytest.mark.parametrize("name", CAPTURED)
def test_our_bytes_are_those_that_vllm_sent(name: str) -> None:
    captured = bytes.fromhex(CAPTURED[name])
    batch = msgspec.msgpack.decode(captured, type=Received)
    assert msgspec.msgpack.encode(EventBatch(batch.ts, batch.events, batch.rank)) == captured


def test_a_salted_chain_carries_its_salt_in_the_first_block_only() -> None:
    pool = BlockPool(8)
    scheduler = Scheduler(pool, 2, Limits(1, 8))
    root = chain.root("m", "", "tenant-A")
    scheduler.add(Sequence(0, [5, 6, 7, 8, 9], Sampling(), max_length=6, root=root, salt="tenant-A"))
    scheduler.plan()
    (event,) = pool.drain_events()
    assert isinstance(event, BlockStored)
    assert event.extra_keys == [["tenant-A"], None]
    assert event.parent_block_hash is None
    assert event.token_ids == [5, 6, 7, 8]


def test_salt_model_adapter_and_earlier_tokens_change_every_name() -> None:
    roots = [chain.root(*parts) for parts in (("m", "", ""), ("m", "", "a"), ("m", "a", ""), ("n", "", ""))]
    names = {tuple(chain.extend(root, [1, 2, 3, 4], 2)) for root in roots}
    assert len({name for pair in names for name in pair}) == 8
    assert chain.extend(roots[0], [1, 2, 3, 4], 2)[1] != chain.extend(roots[0], [9, 2, 3, 4], 2)[1]


def test_a_chain_can_be_extended_piece_by_piece() -> None:
    root = chain.root("m", "", "")
    whole = chain.extend(root, list(range(32)), 8)
    assert chain.extend(whole[1], list(range(16, 32)), 8) == whole[2:]
    assert len(chain.extend(root, list(range(31)), 8)) == 3


def test_a_mirror_holds_what_was_stored_and_not_removed() -> None:
    mirror = CacheMirror()
    for event in (stored(10, 20, 30), stored(40, parent=20), BlockRemoved(block_hashes=[30]), stored(60, salt="s")):
        mirror.apply(event)
    assert list(mirror.blocks) == [10, 20, 40, 60]
    again = CacheMirror()
    events = list(mirror.events())
    for event in events:
        again.apply(event)
    assert list(again.events()) == events
    assert [event.block_hashes for event in events] == [[10, 20, 40], [60]]
    assert events[1].extra_keys == [["s"]]
    mirror.apply(AllBlocksCleared())
    assert not mirror.blocks


def test_long_chains_are_cut_into_several_events() -> None:
    mirror = CacheMirror()
    mirror.apply(stored(*range(1, 2 * MAX_RUN + 2)))
    first, second, third = mirror.events()
    assert (len(first.block_hashes), len(second.block_hashes), len(third.block_hashes)) == (MAX_RUN, MAX_RUN, 1)
    assert (first.parent_block_hash, second.parent_block_hash) == (None, MAX_RUN)


@pytest.fixture
async def sockets(tmp_path: Path) -> Any:
    events, replay = f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r"
    publisher = EventPublisher(events, replay, clock=lambda: 12.5)
    context = zmq.asyncio.Context()
    subscriber, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    subscriber.subscribe(b"")
    subscriber.connect(events)
    dealer.connect(replay)
    serving = asyncio.create_task(publisher.serve_requests())
    await dealer.send_multipart([b"", b"\0" * 8])  # its answer shows that the sockets are up
    assert await dealer.recv_multipart() == [b"", b"", NONE, b""]
    yield publisher, subscriber, dealer
    serving.cancel()
    publisher.close()
    context.destroy(linger=0)


async def test_batches_are_numbered_from_zero_and_replayed_from_any_number(sockets: Any) -> None:
    publisher, _, dealer = sockets
    for hash in (10, 20, 30):
        publisher.publish([stored(hash)])
    publisher.publish([])
    await dealer.send_multipart([b"", (1).to_bytes(8, "big")])
    first, second, end = [await dealer.recv_multipart() for _ in range(3)]
    assert [int.from_bytes(frames[2], "big") for frames in (first, second)] == [1, 2]
    assert msgspec.msgpack.decode(first[3], type=Received) == Received(12.5, [stored(20)])
    assert end == [b"", b"", NONE, b""]


async def test_subscribers_get_three_frames(sockets: Any) -> None:
    publisher, subscriber, dealer = sockets
    frames: list[bytes] = []
    number = -1
    while not frames:  # until the subscription has reached the publisher
        number += 1
        publisher.publish([stored(number + 10)])
        await dealer.send_multipart([b"", NONE])
        await dealer.recv_multipart()
        if await subscriber.poll(10):
            frames = await subscriber.recv_multipart()
    assert frames[0] == b""
    assert frames[1] == number.to_bytes(8, "big")
    assert msgspec.msgpack.decode(frames[2], type=Received).events == [stored(number + 10)]


async def test_a_snapshot_is_the_whole_cache_and_names_the_batch_it_covers(sockets: Any) -> None:
    publisher, _, dealer = sockets
    await dealer.send_multipart([b"", b"snapshot"])
    empty = await dealer.recv_multipart()
    assert empty[:3] == [b"", b"snapshot", NONE]
    publisher.publish([stored(10, 20)])
    publisher.publish([BlockRemoved(block_hashes=[20]), stored(30, parent=10)])
    await dealer.send_multipart([b"", b"snapshot"])
    reply = await dealer.recv_multipart()
    assert reply[:3] == [b"", b"snapshot", (1).to_bytes(8, "big")]
    (event,) = msgspec.msgpack.decode(reply[3], type=Received).events
    assert event.block_hashes == [10, 30]


async def test_unreadable_requests_are_passed_over(sockets: Any) -> None:
    _, _, dealer = sockets
    for frames in ([b"x"], [b"", b"bogus"], [b"", b"", b"", b""]):
        await dealer.send_multipart(frames)
    await dealer.send_multipart([b"", b"\0" * 8])
    assert await dealer.recv_multipart() == [b"", b"", NONE, b""]


def test_an_endpoint_that_cannot_be_bound_is_named() -> None:
    with pytest.raises(SettingsError, match="cannot bind KV events to ipc:///no/such/folder/x"):
        EventPublisher("ipc:///no/such/folder/x", "")
