"""Keys → Redis: log batches as they change, snapshots for readers that missed some. One task, owner of the sequence.

A lone change goes out at once, a burst in windows of 20 ms. Whenever the log may have lost something (start, new
epoch, a write that failed, a server that came back empty) the log is *mended*: a snapshot of everything held, under a
sequence number of its own, so that readers that had followed see a gap and load it. What changed in between is in the
snapshot, so nothing piles up while Redis is away. An agent that starts beside a running engine says nothing before it
knows what the engine holds, because the first snapshot of a new source replaces the keys of the old one.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import reduce
from operator import xor
from typing import Final
from uuid import UUID

from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.kv_store import KvLogWriter
from roundhouse_kv.kv_wire import KvBatch, KvSnapshot, Op, Section, as_keys
from roundhouse_kv.redis_link import RedisLink

from roundhouse_agent.blocks import BlockMap, KeyChange
from roundhouse_agent.key_feed import KeyFeed
from roundhouse_agent.replica import Replica

log = logging.getLogger(__name__)

WINDOW_S: Final = 0.020
UPKEEP_S: Final = 1.0
RETRY_S: Final = 0.25
SNAPSHOT_S: Final = 30.0
SNAPSHOT_MIN_BYTES: Final = 65_536


class KeyPublisher:
    """``clock`` gives monotonic seconds."""

    def __init__(self, replica: Replica, link: RedisLink, writer: KvLogWriter, clock: Callable[[], float]) -> None:
        self._replica = replica
        self._link = link
        self._writer = writer
        self._clock = clock
        self._pod_uid = UUID(replica.identity.pod_uid)
        self._feed: KeyFeed | None = None
        self._stated: BlockMap | None = None  # whose keys the log is about
        self._fresh_epoch = False
        self._mend = True
        self._broken = False
        self._generation = -1
        self._dirty = asyncio.Event()
        self._position = (0, 0)
        self._sent_at = self._upkeep_at = self._snapshot_at = float("-inf")
        self._logged_bytes = 0
        self.failures = 0
        self.snapshots = 0

    def dirty(self) -> None:
        self._dirty.set()

    def begin(self) -> None:
        """A new epoch: the engine holds nothing, whatever the old one held."""
        self._feed, self._fresh_epoch, self._mend = None, True, True
        self.dirty()

    def attach(self, feed: KeyFeed) -> None:
        """Keys come from here for the rest of the epoch."""
        self._feed, self._mend = feed, True
        self.dirty()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(UPKEEP_S):
                    await self._dirty.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(self._sent_at + WINDOW_S - self._clock())
            self._dirty.clear()
            try:
                await self._flush()
                self._broken = False
            except RedisUnavailable as error:
                if not self._broken:
                    log.warning("kv_log_broken", extra={"reason": str(error)})
                self.failures += 1
                self._mend = self._broken = True
                await asyncio.sleep(RETRY_S)
                self._dirty.set()

    async def _flush(self) -> None:
        feed = self._feed
        if not (self._fresh_epoch or (feed is not None and feed.caught_up)):
            return
        now = self._clock()
        self._sent_at = now
        if self._generation != self._link.generation:
            self._generation, self._mend = self._link.generation, True
        if not self._mend and now - self._upkeep_at >= UPKEEP_S / 2:
            self._upkeep_at = now
            self._mend = not await self._writer.touch(str(self._pod_uid))
        blocks = feed.blocks if feed is not None else None
        if self._mend or blocks is not self._stated:
            await self._restate(blocks)
            return
        if blocks is not None and not (change := blocks.take()).empty:
            await self._append(change)
        if self._snapshot_due():
            await self._snapshot(blocks.keys() if blocks is not None else [])

    async def _restate(self, blocks: BlockMap | None) -> None:
        """Mend the log: everything held now, then an empty batch that shows the gap to whoever followed so far."""
        self._mend = False  # now, because a new epoch may ask for it again while this one is being written
        self._stated, keys = blocks, []
        if blocks is not None:
            keys = blocks.keys()
            blocks.take()
        summary = self._replica.keys
        summary.seq += 1
        summary.count, summary.xor = len(keys), reduce(xor, keys, 0)
        await self._snapshot(keys)
        summary.seq += 1
        self._position = await self._writer.append(self._batch())
        self._replica.changed.set()

    async def _append(self, change: KeyChange) -> None:
        summary = self._replica.keys
        summary.seq += 1
        if change.cleared:
            summary.count = summary.xor = 0
        summary.count += len(change.added) - len(change.removed)
        summary.xor = reduce(xor, change.removed, reduce(xor, change.added, summary.xor))
        sections = tuple(
            Section(op, as_keys(keys)) for op, keys in ((Op.REMOVE, change.removed), (Op.ADD, change.added)) if keys
        )
        self._position = await self._writer.append(self._batch(sections, clear=change.cleared))
        self._logged_bytes += 56 + 8 * (len(change.added) + len(change.removed))

    async def _snapshot(self, keys: list[int]) -> None:
        summary, replica = self._replica.keys, self._replica
        source = replica.identity.source
        await self._writer.write_snapshot(
            KvSnapshot(self._pod_uid, replica.epoch, source, summary.seq, *self._position, as_keys(keys))
        )
        self._snapshot_at, self._logged_bytes = self._clock(), 0
        self._upkeep_at = self._snapshot_at
        self.snapshots += 1

    def _snapshot_due(self) -> bool:
        if not self._logged_bytes:
            return False
        size = max(SNAPSHOT_MIN_BYTES, 8 * self._replica.keys.count)
        return self._logged_bytes > size or self._clock() - self._snapshot_at >= SNAPSHOT_S

    def _batch(self, sections: tuple[Section, ...] = (), *, clear: bool = False) -> KvBatch:
        replica = self._replica
        return KvBatch(
            self._pod_uid, replica.epoch, replica.identity.source, replica.keys.seq, replica.now_ms(), sections, clear
        )
