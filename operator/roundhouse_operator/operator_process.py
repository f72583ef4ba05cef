"""One operator process on a real cluster: it waits to lead, leads, and exits when it may no longer lead.

A standby serves its probes and nothing else. Exiting is the only way to stop leading: whatever the process was doing
ends with it, and what comes next begins with what the cluster says.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from prometheus_client import CollectorRegistry
from roundhouse_kv.redis_config import RedisConfig
from roundhouse_kv.redis_link import RedisLink

from roundhouse_operator.cluster import Cluster
from roundhouse_operator.core import OperatorCore
from roundhouse_operator.kopf_source import KopfSource
from roundhouse_operator.kubernetes_cluster import connect
from roundhouse_operator.leader import Leader
from roundhouse_operator.metrics import OperatorCollector
from roundhouse_operator.options import Options
from roundhouse_operator.probes import serve_probes
from roundhouse_operator.redis_password import redis_password
from roundhouse_operator.settings import Settings
from roundhouse_operator.tasks import run_together

log = logging.getLogger(__name__)

STANDBY_SILENCE_S = 30.0


class OperatorProcess:
    """``run`` returns 0 when it was asked to stop, 1 when it lost its Lease."""

    def __init__(self, options: Options, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._monotonic = monotonic
        self._leader: Leader | None = None
        self._core: OperatorCore | None = None
        self._lost = False

    async def run(self) -> int:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        registry = CollectorRegistry()
        registry.register(OperatorCollector(lambda: self._core))
        options = self._options
        async with (
            connect(options.settings.request_timeout_s, kubeconfig=options.kubeconfig) as cluster,
            serve_probes(options.port, alive=self.wrong, registry=registry),
        ):
            await run_together([_until(stop), self._serve(cluster)])
        return 1 if self._lost else 0

    def wrong(self) -> str:
        """Why this process should be restarted; empty while it should not."""
        now = self._monotonic()
        if self._leader is None:
            return ""
        if now - self._leader.turned > STANDBY_SILENCE_S:
            return "the election does not turn"
        if self._core is not None and now - self._core.heard > 2 * self._options.settings.resync_s + 60:
            return "nothing was heard from the API server"
        return ""

    async def _serve(self, cluster: Cluster) -> None:
        self._leader = leader = Leader(cluster, self._options.election)
        await leader.acquire()
        try:
            settings = await self._with_password(cluster)
            redis = RedisConfig(settings.redis_url, settings.redis_username or None, settings.redis_password or None)
            async with RedisLink(redis) as link:
                self._core = core = OperatorCore(
                    cluster,
                    link,
                    settings,
                    make_sources=lambda on_key, on_gap: [KopfSource(settings, on_key, on_gap)],
                    may_lead=lambda: leader.leads,
                )
                await run_together([core.run(), self._hold(leader)])
        finally:
            await leader.release()

    async def _hold(self, leader: Leader) -> None:
        await leader.hold()
        self._lost = True

    async def _with_password(self, cluster: Cluster) -> Settings:
        options = self._options
        if options.settings.redis_password or not options.redis_secret:
            return options.settings
        election = options.election
        password = await redis_password(cluster, election.namespace, options.redis_secret, election.name)
        return replace(options.settings, redis_password=password)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()
    log.info("asked_to_stop")
