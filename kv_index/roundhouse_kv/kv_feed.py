"""KV logs and snapshots → the indexes of all services, in one task over one connection.

Read, apply, look after suspect pods, pause: fuller reads cost less than many small ones. Only pods of the catalogue
are indexed. One that is new, or suspect, gets its snapshot loaded and the log behind that snapshot replayed; the
index skips what it has, so a replay can never do harm. A snapshot that did not help, because what it lacks is no longer
in the log, is deleted: the agent sees that and writes one that does. What takes long (loading, growing the table) is
done in slices or in a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.index import ServiceIndex
from roundhouse_kv.kv_store import START, KvLogReader, StreamId, discard_snapshot, read_snapshots
from roundhouse_kv.kv_wire import KvBatch, KvSnapshot
from roundhouse_kv.names import ServiceKeys
from roundhouse_kv.redis_link import RedisLink

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.01
BLOCK_S: Final = 0.25
RETRY_S: Final = 0.25
SLICE_KEYS: Final = 4096
_THREAD_CAPACITY: Final = 1 << 17

EpochSeen = Callable[[UUID, int], None]


@dataclass(slots=True)
class _Followed:
    """``fresh``: pods whose snapshot was never asked for, or must be asked for again."""

    keys: ServiceKeys
    index: ServiceIndex
    on_epoch: EpochSeen
    members: set[UUID] = field(default_factory=set)
    fresh: set[UUID] = field(default_factory=set)
    started: bool = False


class KvFeed:
    """``on_epoch`` of a service is told every pod and epoch that its log names."""

    def __init__(self, link: RedisLink, clock: Callable[[], float]) -> None:
        self._link = link
        self._clock = clock
        self._reader = KvLogReader(link, block_s=BLOCK_S)
        self._services: dict[ServiceKeys, _Followed] = {}
        self._generation = -1

    def follow(self, keys: ServiceKeys, index: ServiceIndex, members: Iterable[UUID], on_epoch: EpochSeen) -> None:
        """Start to follow a service, or tell which pods it has now."""
        service = self._services.get(keys)
        if service is None:
            service = self._services[keys] = _Followed(keys, index, on_epoch)
        pods = set(members)
        service.fresh = (service.fresh | (pods - service.members)) & pods
        for gone in service.members - pods:
            index.drop(gone)
        service.members = pods

    def forget(self, keys: ServiceKeys) -> None:
        self._services.pop(keys, None)
        self._reader.positions.pop(keys, None)

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            while True:
                try:
                    busy = await self._turn()
                except RedisUnavailable as error:
                    log.debug("kv_log_unavailable", extra={"error": str(error)})
                    busy = False
                    await asyncio.sleep(RETRY_S)
                await asyncio.sleep(PAUSE_S if busy else 0)
        finally:
            self._reader.close()

    async def _turn(self) -> bool:
        """One round; whether the log had anything."""
        for service in [service for service in self._services.values() if not service.started]:
            await self._start(service)
        if self._generation != self._link.generation:
            generation = self._link.generation
            for service in list(self._services.values()):
                await self._check(service)
            self._generation = generation
        if not self._reader.positions:
            await asyncio.sleep(BLOCK_S)
            return False
        found = await self._reader.read()
        for keys, batches in found.items():
            if keys in self._services:
                await self._apply(self._services[keys], batches)
        for service in list(self._services.values()):
            await self._mend(service)
        return bool(found)

    async def _start(self, service: _Followed) -> None:
        """Cold: load every snapshot there is, then read the log from the oldest id that they cover."""
        pods, service.fresh = set(service.fresh), set()
        snapshots = await read_snapshots(self._link, service.keys, pods)
        await self._make_room(service, sum(len(snapshot.keys) for snapshot in snapshots.values()))
        for snapshot in snapshots.values():
            await self._load(service, snapshot)
        if service.keys in self._services:
            reached = [(snapshot.stream_ms, snapshot.stream_n) for snapshot in snapshots.values()]
            self._reader.positions[service.keys] = min(reached) if pods == snapshots.keys() and reached else START
            service.started = True

    async def _mend(self, service: _Followed) -> None:
        """Snapshot and replay for pods that are new or suspect."""
        now = self._clock()
        wanted = (service.index.suspects(now) | service.fresh) & service.members
        if not wanted or not service.started:
            return
        snapshots = await read_snapshots(self._link, service.keys, wanted)
        starts: list[StreamId] = []
        for uid in wanted:
            snapshot = snapshots.get(uid)
            if snapshot is not None:
                await self._load(service, snapshot)
                starts.append((snapshot.stream_ms, snapshot.stream_n))
            elif uid in service.fresh:
                starts.append(START)
        service.fresh -= wanted
        if starts and service.keys in self._reader.positions:
            async for batches in self._reader.replay(service.keys, min(starts)):
                await self._apply(service, batches)
        now = self._clock()
        service.index.postpone(wanted, now)
        doubted = {uid for uid in wanted if not service.index.trusted(uid)}
        for uid in doubted & snapshots.keys():
            await discard_snapshot(self._link, service.keys, uid)
        if doubted or wanted - snapshots.keys():
            await self._check(service)

    async def _check(self, service: _Followed) -> None:
        """Has the log been lost, or cut past our position? Then every pod's snapshot is asked for again."""
        if service.keys in self._reader.positions and not await self._reader.check(service.keys):
            log.info("kv_log_was_cut", extra={"service": service.keys.prefix})
            service.fresh = set(service.members)

    async def _load(self, service: _Followed, snapshot: KvSnapshot) -> None:
        await self._make_room(service, len(snapshot.keys))
        if snapshot.pod_uid not in service.members:
            return
        for _ in service.index.load_slices(snapshot, self._clock()):
            await asyncio.sleep(0)
        service.on_epoch(snapshot.pod_uid, snapshot.epoch)

    async def _apply(self, service: _Followed, batches: Sequence[KvBatch]) -> None:
        size = sum(len(section.keys) for batch in batches for section in batch.sections)
        await self._make_room(service, size)
        part: list[KvBatch] = []
        waiting = 0
        for batch in batches:
            if batch.pod_uid not in service.members:
                continue
            part.append(batch)
            waiting += sum(len(section.keys) for section in batch.sections)
            if waiting >= SLICE_KEYS:
                self._apply_part(service, part)
                part, waiting = [], 0
                await asyncio.sleep(0)
        self._apply_part(service, part)

    def _apply_part(self, service: _Followed, batches: Sequence[KvBatch]) -> None:
        present = [batch for batch in batches if batch.pod_uid in service.members]
        service.index.apply_all(present, self._clock())
        for uid, epoch in {batch.pod_uid: batch.epoch for batch in present}.items():
            service.on_epoch(uid, epoch)

    async def _make_room(self, service: _Followed, keys: int) -> None:
        """Grow a big table in a thread; small ones grow by themselves when written."""
        mirror = service.index.mirror
        capacity = mirror.wanted_capacity(keys)
        if capacity is not None and capacity >= _THREAD_CAPACITY:
            mirror.adopt(await asyncio.to_thread(mirror.rebuilt, capacity))
