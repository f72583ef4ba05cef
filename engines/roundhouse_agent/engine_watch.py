"""The task that watches the engine: a new start begins an epoch, answers make it ready, its load fills the lease.

An engine that refuses connections is absent at once; one that is silent stays what it was for three seconds, so that a
busy moment does not take it out of routing.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import LoadReport, Probe
from roundhouse_kv.records import Progress

from roundhouse_agent.epoch import EpochKeeper
from roundhouse_agent.key_publisher import KeyPublisher
from roundhouse_agent.lease_publisher import LeasePublisher
from roundhouse_agent.replica import Engine, HungWatch, Replica
from roundhouse_agent.session import EngineSession

log = logging.getLogger(__name__)

PERIOD_S: Final = 0.25
STARTING_PERIOD_S: Final = 0.1
SILENT_AFTER_S: Final = 3.0
PREPARE_RETRY_S: Final = 1.0


class EngineWatch:
    """``open_probe`` and ``open_session`` are called once per epoch. ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        replica: Replica,
        keeper: EpochKeeper,
        open_session: Callable[[Probe], EngineSession],
        open_probe: Callable[[], Probe],
        keys: KeyPublisher,
        leases: LeasePublisher,
        hung: HungWatch,
        clock: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._keeper = keeper
        self._open_session = open_session
        self._open_probe = open_probe
        self._keys = keys
        self._leases = leases
        self._hung = hung
        self._clock = clock
        self._answered_at = float("-inf")
        self._probe: Probe | None = None
        self._preparing: asyncio.Task[None] | None = None
        self.session: EngineSession | None = None

    async def run(self) -> None:
        self._replica.epoch = self._keeper.epoch
        try:
            while True:
                if self._keeper.observe():
                    await self._end()
                    self._replica.begin(self._keeper.epoch)
                    self._keys.begin()
                await self._look()
                await asyncio.sleep(PERIOD_S if self._replica.serving else STARTING_PERIOD_S)
        finally:
            await self._end()

    async def _look(self) -> None:
        """One look at health and load."""
        if not self._replica.epoch:
            self._replica.problem = "the engine container has not started yet"
            self._replica.looked()
            return
        self._replica.problem = ""
        if self._probe is None or self.session is None:
            self._probe = self._open_probe()
            self.session = self._open_session(self._probe)
            self._keys.attach(self.session.feed)
        before, seen_at = self._replica.state, self._clock()
        self._replica.engine = await self._health(self._probe)
        load = await self._load(self._probe) if self._replica.engine is Engine.ANSWERS else None
        self._note(load, seen_at)
        if self._replica.engine is Engine.ANSWERS and self._preparing is None:
            self._preparing = asyncio.create_task(self._prepare(self.session), name="prepare engine")
        for task in (self._preparing, self.session.reading):
            if task is not None and task.done():
                task.result()  # a defect there ends the agent, and the kubelet starts it anew
        self._replica.looked()
        if before != self._replica.state:
            log.info("replica_state", extra={"state": self._replica.state, "epoch": self._replica.epoch})

    async def _health(self, probe: Probe) -> Engine:
        try:
            if not await probe.healthy():
                return Engine.ABSENT
        except ProbeError:
            silent_for = self._clock() - self._answered_at
            return Engine.SILENT if silent_for >= SILENT_AFTER_S else self._replica.engine
        self._answered_at = self._clock()
        return Engine.ANSWERS

    async def _load(self, probe: Probe) -> LoadReport | None:
        try:
            return await probe.load()
        except ProbeError as error:
            log.debug("load_unknown", extra={"reason": str(error)})
            return None

    def _note(self, load: LoadReport | None, seen_at: float) -> None:
        replica = self._replica
        batches = self.session.feed.batches if self.session is not None else 0
        replica.load = load
        replica.hung = replica.engine is not Engine.ABSENT and self._hung.observe(load, batches, self._clock())
        idle = replica.engine is Engine.ABSENT or (load is not None and load.running == 0 and load.waiting == 0)
        replica.drain.observe(idle, seen_at)
        fetched = replica.progress is None or replica.progress.phase in ("fetch", "convert")
        if fetched and replica.engine is Engine.ABSENT:
            replica.progress = Progress(phase="load")

    async def _prepare(self, session: EngineSession) -> None:
        """Until it works: an engine that answers /health but not what it runs is asked again."""
        while True:
            self._replica.progress = Progress(phase="warmup")
            with suppress(ProbeError):
                prepared = await session.prepare()
                self._leases.profile, self._leases.table = prepared.profile, prepared.model.packed
                self._replica.profile, self._replica.stack = prepared.profile.digest, prepared.stack
                self._replica.prepared = True
                self._replica.changed.set()
                return
            await asyncio.sleep(PREPARE_RETRY_S)

    async def _end(self) -> None:
        """Leave the old epoch's engine."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
        if self.session is not None:
            await self.session.close()
        self._probe = self._preparing = self.session = None
