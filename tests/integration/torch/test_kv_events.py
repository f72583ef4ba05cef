"""Events of a running server, followed from the first frame or joined late, add up to what its cache holds."""

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from roundhouse_torch.events.mirror import CacheMirror
from roundhouse_torch.events.publisher import NONE
from roundhouse_torch.kvcache.events import AllBlocksCleared, BlockStored, CacheEvent

from tests.support.engine_server import EngineServer

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("torch-server")]


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[CacheEvent]
    rank: int


@pytest.fixture
def ask(server: EngineServer) -> Any:
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"ipc://{server.run_dir}/replay.sock")  # type: ignore[attr-defined]
    dealer.setsockopt(zmq.RCVTIMEO, 30_000)

    def ask(request: bytes) -> list[tuple[int, list[CacheEvent]]]:
        dealer.send_multipart([b"", request])
        found = []
        while True:
            frames = dealer.recv_multipart()
            if frames[2] == NONE and frames[1] != b"snapshot":
                return found
            found.append((int.from_bytes(frames[2], "big"), msgspec.msgpack.decode(frames[3], type=Batch).events))
            if frames[1] == b"snapshot":
                return found

    yield ask
    context.destroy(linger=0)


def replayed(batches: list[tuple[int, list[CacheEvent]]]) -> CacheMirror:
    mirror = CacheMirror()
    for _, events in batches:
        for event in events:
            mirror.apply(event)
    return mirror


def fill(server: EngineServer, count: int, salt: str | None = None) -> None:
    for index in range(count):
        prompt = f"{salt} {index} " + "some words to fill blocks " * 20
        status, _ = server.post(
            "/v1/completions", {"prompt": prompt, "max_tokens": 20, "ignore_eos": True, "cache_salt": salt}
        )
        assert status == 200


def test_replay_and_snapshot_agree_and_are_what_the_next_prompt_finds(server: EngineServer, ask: Any) -> None:
    fill(server, 3)
    (number, snapshot), batches = ask(b"snapshot")[0], ask(b"\0" * 8)
    assert [seq for seq, _ in batches] == list(range(number + 1))
    whole, late = replayed(batches), replayed([(number, snapshot)])
    assert list(whole.events()) == list(late.events())
    prompt = "None 1 " + "some words to fill blocks " * 20
    tokens = server.post("/tokenize", {"prompt": prompt})[1]["tokens"]
    chains = [event.token_ids for event in late.events() if event.parent_block_hash is None]
    assert any(chain[: len(tokens) // 16 * 16] == tokens[: len(tokens) // 16 * 16] for chain in chains)


def test_parents_come_before_children_and_salts_stand_in_first_blocks(server: EngineServer, ask: Any) -> None:
    fill(server, 2, salt="tenant-A")
    (_, events) = ask(b"snapshot")[0]
    seen: set[int] = set()
    salted = 0
    for event in events:
        assert isinstance(event, BlockStored)
        assert event.parent_block_hash is None or event.parent_block_hash in seen
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size == len(event.extra_keys) * 16
        seen.update(event.block_hashes)
        salted += event.extra_keys[0] == ["tenant-A"]
        assert all(keys is None for keys in event.extra_keys[1:])
    assert salted == 2


def test_late_joiners_follow_from_their_snapshot_through_evictions(server: EngineServer, ask: Any) -> None:
    number, snapshot = ask(b"snapshot")[0]
    mirror = replayed([(number, snapshot)])
    for round in itertools.count():
        fill(server, 4, salt=f"round {round}")
        batches = ask((number + 1).to_bytes(8, "big"))
        number = batches[-1][0]
        for _, events in batches:
            for event in events:
                mirror.apply(event)
        if any(not isinstance(event, BlockStored) for _, events in batches for event in events):
            break
        assert round < 40
    (_, fresh) = ask(b"snapshot")[0]
    assert set(mirror.blocks) == set(replayed([(0, fresh)]).blocks)


def test_a_reset_is_published_at_once(server: EngineServer, ask: Any) -> None:
    fill(server, 1)
    server.wait_for_metric("num_requests_running", 0)
    assert server.post("/reset_prefix_cache") == (200, {"success": True})
    number, snapshot = ask(b"snapshot")[0]
    assert snapshot == []
    assert ask(number.to_bytes(8, "big"))[0][1] == [AllBlocksCleared()]


def test_the_sockets_lie_where_they_were_asked_for(server: EngineServer) -> None:
    run_dir: Path = server.run_dir  # type: ignore[attr-defined]
    assert {path.name for path in run_dir.iterdir()} == {"events.sock", "replay.sock"}
