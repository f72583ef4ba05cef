import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.integration.sim.client import post
from tests.integration.sim.conftest import StartSim

pytestmark = pytest.mark.integration

END = b"\xff" * 8


class Watcher:
    """Reads an engine's event sockets as an agent does."""

    def __init__(self, folder: Path) -> None:
        self.events = f"ipc://{folder}/events.sock"
        self.replay = f"ipc://{folder}/replay.sock"
        self.options = ("--kv-events", self.events, "--kv-replay", self.replay)
        self._context = zmq.asyncio.Context()

    def subscribe(self) -> "zmq.asyncio.Socket":
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 0)  # nothing is dropped, however late it is read
        socket.subscribe(b"")
        socket.connect(self.events)
        return socket

    async def ask(self, request: bytes, until_end: bool) -> list[list[bytes]]:
        socket = self._context.socket(zmq.DEALER)
        socket.connect(self.replay)
        try:
            await socket.send_multipart([b"", request])
            answers = []
            while True:
                answers.append(await asyncio.wait_for(socket.recv_multipart(), 10))
                if not until_end or answers[-1][2] == END:
                    return answers
        finally:
            socket.close(0)

    def close(self) -> None:
        self._context.destroy(0)


class Index:
    """Which blocks an engine holds, from its events: hash → (parent, tokens)."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int | None, tuple[int, ...]]] = {}

    def apply(self, payload: bytes) -> None:
        event: dict[str, Any]
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "BlockStored":
                size, parent = event["block_size"], event["parent_block_hash"]
                assert parent is None or parent in self.blocks
                for at, key in enumerate(event["block_hashes"]):
                    self.blocks[key] = (parent, tuple(event["token_ids"][at * size : (at + 1) * size]))
                    parent = key
            elif event["type"] == "BlockRemoved":
                for key in event["block_hashes"]:
                    del self.blocks[key]
            else:
                self.blocks.clear()


@pytest.fixture
def watcher(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Watcher(tmp_path)
    yield made
    made.close()


async def load(url: str, count: int) -> None:
    """Prompts that share beginnings, more than the cache holds."""

    async def one(number: int) -> None:
        prompt = f"{number % 3} beginning " * 20 + f"{number} rest " * (number % 17)
        body = {"prompt": prompt, "max_tokens": 1 + number % 40, "cache_salt": "s" if number % 5 == 0 else None}
        assert (await post(f"{url}/v1/completions", body))[0] == 200

    for start in range(0, count, 10):
        await asyncio.gather(*(one(number) for number in range(start, start + 10)))


async def test_events_replay_and_snapshot_all_tell_what_the_cache_holds(start_sim: StartSim, watcher: Watcher) -> None:
    subscriber = watcher.subscribe()
    sim = start_sim("--speedup", "200", "--kv-tokens", "4000", "--max-num-seqs", "4", *watcher.options)
    await load(sim.url, 100)
    ((_, marker, last, snapshot),) = await watcher.ask(b"snapshot", until_end=False)
    assert marker == b"snapshot"
    replayed = await watcher.ask((0).to_bytes(8, "big"), until_end=True)
    assert replayed[-1] == [b"", b"", END, b""]
    assert [int.from_bytes(answer[2], "big") for answer in replayed[:-1]] == list(
        range(int.from_bytes(last, "big") + 1)
    )

    from_snapshot, from_replay, live = Index(), Index(), Index()
    from_snapshot.apply(snapshot)
    for answer in replayed[:-1]:
        from_replay.apply(answer[3])
    assert from_snapshot.blocks == from_replay.blocks
    assert 200 < len(from_replay.blocks) <= 250

    first_live = None
    while True:
        topic, seq, payload = await asyncio.wait_for(subscriber.recv_multipart(), 10)
        if first_live is None:
            first_live = int.from_bytes(seq, "big")
            for answer in replayed[:first_live]:
                live.apply(answer[3])
        live.apply(payload)
        if seq == last:
            break
    assert topic == b""
    assert live.blocks == from_replay.blocks
    subscriber.close(0)


async def test_what_events_promise_is_reported_as_cached(start_sim: StartSim, watcher: Watcher) -> None:
    sim = start_sim("--speedup", "200", "--kv-tokens", "2000", *watcher.options)
    await load(sim.url, 40)
    prompt = "1 beginning " * 20
    index = Index()
    index.apply((await watcher.ask(b"snapshot", until_end=False))[0][3])
    held = {tokens: key for key, (_, tokens) in index.blocks.items()}
    depth = 0
    while tuple(prompt[depth * 16 : depth * 16 + 16].encode()) in held:
        depth += 1
    _, body = await post(f"{sim.url}/v1/completions", {"prompt": prompt, "max_tokens": 1})
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == min(depth, (len(prompt) - 1) // 16) * 16


async def test_snapshot_before_anything_happened_is_numbered_minus_one(start_sim: StartSim, watcher: Watcher) -> None:
    start_sim(*watcher.options)
    ((_, _, seq, payload),) = await watcher.ask(b"snapshot", until_end=False)
    assert seq == END
    assert msgspec.msgpack.decode(payload)[1] == []


async def test_the_oldest_batches_leave_the_replay_buffer(start_sim: StartSim, watcher: Watcher) -> None:
    sim = start_sim("--speedup", "200", "--kv-buffer-steps", "5", *watcher.options)
    await load(sim.url, 20)
    answers = await watcher.ask((0).to_bytes(8, "big"), until_end=True)
    assert len(answers) == 6
    assert int.from_bytes(answers[0][2], "big") > 0


async def test_nonsense_on_the_replay_socket_is_ignored(start_sim: StartSim, watcher: Watcher) -> None:
    start_sim(*watcher.options)
    for nonsense in (b"x", b"", b"123456789"):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(watcher.ask(nonsense, until_end=False), 0.1)
    assert len(await watcher.ask(b"snapshot", until_end=False)) == 1
