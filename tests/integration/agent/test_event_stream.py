"""KV events over real sockets: nothing twice, nothing out of order, and no gap that goes unnoticed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import msgspec
import pytest
import zmq
import zmq.asyncio
from roundhouse_engines.probe import BlocksRemoved, CacheBatch
from roundhouse_engines.vllm import event_stream
from roundhouse_engines.vllm.event_stream import EventStream

pytestmark = pytest.mark.integration

END = b"\xff" * 8


class Publisher:
    """An engine's two sockets. Frame n removes block n. ``kept`` of the frames can be replayed.

    ``snapshot``: the number that a snapshot covers, None = such requests are not understood.
    """

    def __init__(self, run_dir: Path) -> None:
        self.events, self.replay = f"ipc://{run_dir}/events", f"ipc://{run_dir}/replay"
        self.kept: range = range(0)
        self.snapshot: int | None = None
        self.answers = True

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._pub, self._router = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
        self._pub.bind(self.events)
        self._router.bind(self.replay)
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)

    async def send(self, *numbers: int, payload: bytes | None = None) -> None:
        for number in numbers:
            await self._pub.send_multipart([b"topic", number.to_bytes(8, "big"), payload or frame(number)])

    async def _serve(self) -> None:
        while True:
            peer, _, asked = await self._router.recv_multipart()
            if not self.answers:
                continue
            if asked == b"snapshot" and self.snapshot is not None:
                number = self.snapshot.to_bytes(8, "big", signed=True)
                await self._router.send_multipart([peer, b"", b"snapshot", number, frame(900)])
                continue
            start = int.from_bytes(asked, "big")
            for number in self.kept:
                if number >= start:
                    await self._router.send_multipart([peer, b"", b"topic", number.to_bytes(8, "big"), frame(number)])
            await self._router.send_multipart([peer, b"", b"", END, b""])


def frame(number: int) -> bytes:
    return msgspec.msgpack.encode([0.5, [{"type": "BlockRemoved", "block_hashes": [number], "medium": "GPU"}], 0])


def batch(number: int, *, block: int | None = None, gap: bool = False) -> CacheBatch:
    return CacheBatch(number, (BlocksRemoved((number if block is None else block,)),), gap)


@asynccontextmanager
async def follow(publisher: Publisher, *, snapshots: bool = False) -> AsyncIterator["Follower"]:
    stream = EventStream(publisher.events, publisher.replay, snapshots=snapshots)
    follower = Follower(stream)
    try:
        yield follower
    finally:
        await follower.close()


class Follower:
    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._seen: asyncio.Queue[CacheBatch] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for each in self._stream.batches():
            self._seen.put_nowait(each)

    async def next(self, count: int) -> list[CacheBatch]:
        return [await asyncio.wait_for(self._seen.get(), 10) for _ in range(count)]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._stream.close()
        assert self._seen.empty(), self._seen


@pytest.fixture
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zmq")  # short: a socket's path has at most 107 bytes


async def test_a_late_follower_gets_everything_from_the_start_by_replay(run_dir: Path) -> None:
    async with Publisher(run_dir) as engine:
        engine.kept = range(3)
        async with follow(engine) as follower:
            assert await follower.next(4) == [batch(0), batch(1), batch(2), CacheBatch(2, ())]
            await engine.send(3)
            assert await follower.next(1) == [batch(3)]


async def test_an_early_follower_gets_an_empty_past(run_dir: Path) -> None:
    async with Publisher(run_dir) as engine, follow(engine) as follower:
        assert await follower.next(1) == [CacheBatch(-1, ())]
        await engine.send(0, 1)
        assert await follower.next(2) == [batch(0), batch(1)]


async def test_frames_that_the_replay_had_already_are_not_repeated(run_dir: Path) -> None:
    async with Publisher(run_dir) as engine:
        engine.kept = range(3)
        async with follow(engine) as follower:
            await follower.next(4)
            await engine.send(1, 2, 3)
            assert await follower.next(1) == [batch(3)]


async def test_a_gap_is_filled_by_replay_before_the_frame_behind_it(run_dir: Path) -> None:
    async with Publisher(run_dir) as engine, follow(engine) as follower:
        await follower.next(1)
        await engine.send(0)
        assert await follower.next(1) == [batch(0)]
        engine.kept = range(5)
        await engine.send(4, 5)
        assert await follower.next(5) == [batch(number) for number in range(1, 6)]


async def test_what_replay_cannot_fill_is_marked(run_dir: Path) -> None:
    async with Publisher(run_dir) as engine, follow(engine) as follower:
        await follower.next(1)
        engine.kept = range(7, 9)
        await engine.send(8)
        assert await follower.next(2) == [batch(7, gap=True), batch(8)]


async def test_a_past_that_is_partly_lost_begins_with_a_gap(run_dir: Path) -> None:
    async with Publisher(run_dir) as engine:
        engine.kept = range(5, 7)
        async with follow(engine) as follower:
            assert await follower.next(3) == [batch(5, gap=True), batch(6), CacheBatch(6, ())]


async def test_a_snapshot_replaces_a_past_that_is_partly_lost(run_dir: Path) -> None:
    async with Publisher(run_dir) as engine:
        engine.kept, engine.snapshot = range(5, 7), 6
        async with follow(engine, snapshots=True) as follower:
            assert await follower.next(2) == [batch(6, block=900, gap=True), CacheBatch(6, ())]
            await engine.send(6, 7)
            assert await follower.next(1) == [batch(7)]


async def test_a_snapshot_replaces_a_gap_that_replay_cannot_fill(run_dir: Path) -> None:
    async with Publisher(run_dir) as engine, follow(engine, snapshots=True) as follower:
        await follower.next(1)
        engine.kept, engine.snapshot = range(7, 9), 8
        await engine.send(8, 9)
        assert await follower.next(2) == [batch(8, block=900, gap=True), batch(9)]


async def test_a_snapshot_of_an_engine_that_published_nothing_goes_on_with_frame_0(run_dir: Path) -> None:
    async with Publisher(run_dir) as engine, follow(engine, snapshots=True) as follower:
        engine.snapshot = -1
        await follower.next(1)
        await engine.send(0)
        assert await follower.next(1) == [batch(0)]


async def test_an_unreadable_frame_is_a_gap(run_dir: Path) -> None:
    async with Publisher(run_dir) as engine, follow(engine) as follower:
        await follower.next(1)
        await engine.send(0, payload=b"\xc1")
        await engine.send(1)
        assert await follower.next(2) == [CacheBatch(0, (), gap=True), batch(1)]


async def test_without_an_answer_to_replay_the_stream_goes_on_with_a_gap(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "REPLY_TIMEOUT_S", 0.1)
    async with Publisher(run_dir) as engine:
        engine.answers = False
        async with follow(engine) as follower:
            assert await follower.next(1) == [CacheBatch(-1, ())]
            await engine.send(4, 5)
            assert await follower.next(2) == [batch(4, gap=True), batch(5)]
