"""What goes into the KV log, in which order, and how it is mended; Redis is a list in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import pytest
from roundhouse_agent.blocks import BlockMap
from roundhouse_agent.key_feed import KeyFeed
from roundhouse_agent.key_publisher import KeyPublisher
from roundhouse_agent.replica import Identity, Replica
from roundhouse_engines.probe import BlocksRemoved, BlocksStored, CacheBatch
from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.index import ServiceIndex
from roundhouse_kv.keys import root_key
from roundhouse_kv.kv_wire import KvBatch, KvSnapshot

from tests.unit.roundhouse_agent.test_blocks import SIZE, Bytes

POD = UUID("6b1f2a3c-0000-4000-8000-000000000001")


class Log:
    """Stands in for link and writer. ``broken``: every write fails; ``gone``: the snapshot was lost."""

    generation = 1

    def __init__(self) -> None:
        self.entries: list[KvBatch | KvSnapshot] = []
        self.broken = self.gone = False

    async def append(self, batch: KvBatch) -> tuple[int, int]:
        self._write(batch)
        return len(self.entries), 0

    async def write_snapshot(self, snapshot: KvSnapshot) -> None:
        self._write(snapshot)
        self.gone = False

    async def touch(self, pod_uid: str) -> bool:
        if self.broken:
            raise RedisUnavailable("away")
        return not self.gone

    def _write(self, entry: KvBatch | KvSnapshot) -> None:
        if self.broken:
            raise RedisUnavailable("away")
        self.entries.append(entry)

    def reader(self) -> ServiceIndex:
        """A gateway that has followed from the start and loads a snapshot when it must."""
        index = ServiceIndex()
        latest: KvSnapshot | None = None
        for entry in self.entries:
            if isinstance(entry, KvSnapshot):
                latest = entry
                continue
            index.apply(entry, 0.0)
            if POD in index.suspects(0.0) and latest is not None:
                index.load(latest, 0.0)
                index.apply(entry, 0.0)
        return index


async def until(condition: Callable[[], bool]) -> None:
    ends = asyncio.get_running_loop().time() + 10
    while asyncio.get_running_loop().time() < ends:
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("not within 10 s")


class Bench:
    def __init__(self) -> None:
        self.log = Log()
        self.replica = Replica(Identity("demo", "uid", str(POD), 77, ""), lambda: 5)
        self.keys = KeyPublisher(self.replica, self.log, self.log, asyncio.get_running_loop().time)  # type: ignore[arg-type]

    def new_epoch(self, epoch: int) -> BlockMap:
        self.replica.begin(epoch)
        self.keys.begin()
        return self.attach()

    def attach(self) -> BlockMap:
        self.feed = KeyFeed(self.keys.dirty)
        self.keys.attach(self.feed)
        blocks = BlockMap(Bytes(), lambda adapter, salt: root_key("p", adapter, salt), None)
        self.feed.arm(blocks)
        return blocks

    def store(self, name: int, fill: int) -> None:
        """One block that completes one key."""
        self.feed._see(CacheBatch(0, (BlocksStored((name,), None, (fill,) * SIZE * 2, SIZE * 2),)))

    def caught_up(self) -> None:
        self.feed._see(CacheBatch(-1, ()))

    async def settled(self) -> None:
        """The reader holds what the lease says."""
        await until(self._in_step)

    def _in_step(self) -> bool:
        summary = self.replica.keys
        blocks = self.feed.blocks
        held = len(blocks.keys()) if blocks is not None else 0
        index = self.log.reader()
        return summary.count == held == index.key_count(POD) and index.trusted(POD) and bool(self.log.entries)


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    task = asyncio.create_task(made.keys.run())
    yield made
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_changes_follow_the_snapshot_of_a_new_epoch() -> None:
    async with bench() as b:
        b.new_epoch(9)
        b.caught_up()
        await b.settled()
        b.store(1, 1)
        b.store(2, 2)
        await b.settled()
        b.feed._see(CacheBatch(0, (BlocksRemoved((1,)),)))
        await b.settled()
        seqs = [entry.seq for entry in b.log.entries if isinstance(entry, KvBatch)]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
        assert all(entry.epoch == 9 and entry.source == 77 for entry in b.log.entries)


async def test_an_agent_beside_a_running_engine_says_nothing_before_it_knows_what_is_held() -> None:
    async with bench() as b:
        b.replica.epoch = 9
        b.attach()
        b.store(1, 1)
        await asyncio.sleep(0.06)
        assert b.log.entries == []
        b.caught_up()
        await b.settled()
        first = b.log.entries[0]
        assert isinstance(first, KvSnapshot)
        assert len(first.keys) == 1


async def test_after_a_failed_write_a_reader_sees_a_gap_and_the_snapshot_has_everything() -> None:
    async with bench() as b:
        b.new_epoch(9)
        b.caught_up()
        b.store(1, 1)
        await b.settled()
        b.log.broken = True
        b.store(2, 2)
        b.store(3, 3)
        await until(lambda: b.keys.failures > 0)
        b.log.broken = False
        await b.settled()
        assert len(b.log.entries) < 10


async def test_a_lost_snapshot_is_written_again() -> None:
    async with bench() as b:
        b.new_epoch(9)
        b.caught_up()
        b.store(1, 1)
        await b.settled()
        b.log.entries.clear()
        b.log.gone = True
        await b.settled()


async def test_a_server_that_came_back_is_told_everything() -> None:
    async with bench() as b:
        b.new_epoch(9)
        b.caught_up()
        b.store(1, 1)
        await b.settled()
        b.log.entries.clear()
        b.log.generation = 2
        b.keys.dirty()
        await b.settled()
        assert isinstance(b.log.entries[0], KvSnapshot)


async def test_a_new_epoch_drops_the_keys_of_the_old_one() -> None:
    async with bench() as b:
        b.new_epoch(9)
        b.caught_up()
        b.store(1, 1)
        await b.settled()
        b.new_epoch(10)
        await b.settled()
        b.caught_up()
        b.store(2, 2)
        await b.settled()
        assert b.log.entries[-1].epoch == 10


async def test_keys_end_when_the_profile_is_distrusted() -> None:
    async with bench() as b:
        b.new_epoch(9)
        b.caught_up()
        b.store(1, 1)
        await b.settled()
        b.feed.disarm()
        await b.settled()
        assert b.replica.keys.count == b.replica.keys.xor == 0


@pytest.mark.parametrize("count", [200])
async def test_a_burst_is_sent_in_few_batches(count: int) -> None:
    async with bench() as b:
        b.new_epoch(9)
        b.caught_up()
        await b.settled()
        sent = len(b.log.entries)
        for name in range(count):
            b.store(name, name)
        await b.settled()
        assert len(b.log.entries) - sent <= 3
