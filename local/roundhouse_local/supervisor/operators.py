"""The operator as a task that can be ended and begun anew, with all of its state lost."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from roundhouse_kv.records import Lease
from roundhouse_kv.redis_link import RedisLink
from roundhouse_operator.cluster import Cluster
from roundhouse_operator.core import OperatorCore
from roundhouse_operator.settings import Settings

from roundhouse_local.supervisor.valkey import ValkeyAccess

logger = logging.getLogger(__name__)

RESTART_S = 1.0


class OperatorTask:
    """`run` starts an operator whenever there is none; `restart` takes the present one away."""

    def __init__(self, cluster: Cluster, access: ValkeyAccess, settings: Settings) -> None:
        self._cluster, self._access, self._settings = cluster, access, settings
        self._core: OperatorCore | None = None
        self._task: asyncio.Task[None] | None = None
        self.starts = 0

    def leases(self, service: str) -> Mapping[str, Lease]:
        """What agents of ``namespace/name`` last said, by EngineReplica uid."""
        return self._core.feed.leases(service) if self._core else {}

    async def run(self) -> None:
        while True:
            self._task = asyncio.create_task(self._life())
            try:
                await asyncio.shield(self._task)
            except asyncio.CancelledError:
                if not self._task.cancelled():  # We are to end, not the operator alone.
                    await _end(self._task)
                    raise
                logger.info("operator_restarted")
                continue
            except Exception:
                logger.exception("operator_crashed")
            await asyncio.sleep(RESTART_S)

    async def restart(self) -> None:
        """Returns when the old operator is gone."""
        if self._task is not None:
            await _end(self._task)

    async def _life(self) -> None:
        self.starts += 1
        async with RedisLink(self._access.config()) as link:
            self._core = OperatorCore(self._cluster, link, self._settings)
            try:
                await self._core.run()
            finally:
                self._core = None


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
