"""The running operator: sources and timers put keys of services into the queue, workers reconcile them.

Everything here only decides *when* to look at a service; what to do about it is `plan`'s. A crash of the process, or a
second one that takes over, loses nothing: all state is in the cluster, and Redis is filled again from it.

Tasks of one `OperatorCore`: the sources; the workers; a resync that lists the services anew now and then; the feed that
reads leases once a second; a look at the health of Redis and sources, and one at loads; the catalogue's publisher. One
owner, the `run` coroutine, awaits them all; the first that fails ends the rest.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from roundhouse_kv.acl_store import AclStore
from roundhouse_kv.catalogue_store import CatalogueStore
from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.lease_store import LeaseStore
from roundhouse_kv.names import Installation
from roundhouse_kv.operator_feed import OperatorFeed
from roundhouse_kv.redis_link import RedisLink

from roundhouse_operator.access import Access
from roundhouse_operator.agents import Agents, HttpAgents
from roundhouse_operator.autoscaler import Autoscaler
from roundhouse_operator.catalogue import CataloguePublisher
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, POD, Cluster, ClusterError
from roundhouse_operator.errors import SourceEnded
from roundhouse_operator.names import OURS
from roundhouse_operator.queue import WorkQueue
from roundhouse_operator.reconcile import Context, Reconciler
from roundhouse_operator.settings import Settings
from roundhouse_operator.sources import Selection, Source, WatchSource, labelled_key, own_key
from roundhouse_operator.tasks import run_together

log = logging.getLogger(__name__)


class OperatorCore:
    """``run`` until cancelled.

    ``make_sources`` is given what hears the keys, and what hears that some may be missing; by default the cluster's own
    watches are used. ``may_lead``: this
    process still leads; asked before a new term is taken. ``heard`` is when the API server last answered or reported.
    """

    def __init__(
        self,
        cluster: Cluster,
        link: RedisLink,
        settings: Settings,
        *,
        agents: Agents | None = None,
        make_sources: Callable[[Callable[[str], None], Callable[[], None]], Sequence[Source]] | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        may_lead: Callable[[], bool] = lambda: True,
    ) -> None:
        self.queue = WorkQueue(clock=monotonic)
        self._cluster = cluster
        self._link = link
        self._settings = settings
        self._agents = agents
        self._clock = clock
        self._monotonic = monotonic
        self._installation = Installation(settings.installation)
        self.publisher = CataloguePublisher(
            CatalogueStore(link, self._installation),
            on_stamp=self._stamped,
            on_found=self._found,
            may_lead=may_lead,
        )
        self.feed = OperatorFeed(
            link, self._installation, on_change=self.queue.add, on_republish=self.publisher.republish
        )
        self.autoscaler = Autoscaler()
        self._redis_healthy_at = monotonic()
        self._gap = asyncio.Event()
        self.sources = make_sources(self.queue.add, self._gap.set) if make_sources else self._make_watches()
        self._listed_at = monotonic()
        self._unheard_since: float | None = None

    async def run(self) -> None:
        async with HttpAgents(self._settings.agent_timeout_s) as http_agents:
            reconciler = Reconciler(self._context(self._agents or http_agents))
            await self._first_look(reconciler)
            await run_together(
                [
                    *(source.run() for source in self.sources),
                    *(self._work(reconciler) for _ in range(self._settings.workers)),
                    self._resync(reconciler),
                    self.feed.run(),
                    self._watch_health(reconciler),
                    self._watch_loads(),
                    self.publisher.run(),
                ]
            )

    @property
    def heard(self) -> float:
        return max(self._listed_at, *(source.heard for source in self.sources))

    def redis_healthy(self) -> bool:
        """Short gaps do not count: nobody is helped by conditions that flicker."""
        if self._link.healthy:
            self._redis_healthy_at = self._monotonic()
        return self._monotonic() - self._redis_healthy_at < self._settings.redis_patience_s

    def _context(self, agents: Agents) -> Context:
        return Context(
            cluster=self._cluster,
            agents=agents,
            leases=self.feed,
            catalogue=self.publisher,
            settings=self._settings,
            requeue=self.queue.add,
            purge=self._purge,
            redis_healthy=self.redis_healthy,
            wrote=self._wrote,
            clock=self._clock,
            access=Access(self._cluster, AclStore(self._link, self._settings.installation), self._settings),
            autoscaler=self.autoscaler,
        )

    def _make_watches(self) -> list[Source]:
        sources: list[Source] = []
        for namespace in self._settings.namespaces or (None,):
            services = Selection(INFERENCE_SERVICE, namespace)
            sources.append(WatchSource(self._cluster, services, own_key, self.queue.add))
            for kind in (ENGINE_REPLICA, POD):
                sources.append(
                    WatchSource(self._cluster, Selection(kind, namespace, OURS), labelled_key, self.queue.add)
                )
        return sources

    async def _first_look(self, reconciler: Reconciler) -> None:
        """Before the first service is judged: who claims which name, and, if Redis answers, who was a member."""
        try:
            await self.publisher.load()
        except RedisUnavailable as error:
            log.warning("redis_not_there_yet", extra={"error": str(error)})
        while True:
            try:
                keys = await self._list_services(reconciler)
                break
            except ClusterError as error:
                log.warning("cluster_not_there_yet", extra={"error": str(error)})
                await asyncio.sleep(1.0)
        self.publisher.expect(keys)
        for key in keys:
            self.queue.add(key)

    async def _list_services(self, reconciler: Reconciler) -> set[str]:
        keys = set()
        for namespace in self._settings.namespaces or (None,):
            services, _ = await self._cluster.list(INFERENCE_SERVICE, namespace)
            for service in services:
                key = own_key(service)
                keys.add(key)
                for other in reconciler.claim(key, service):
                    self.queue.add(other)
        self._listed_at = self._monotonic()
        return keys

    def _watched(self, key: str) -> bool:
        return not self._settings.namespaces or key.split("/", 1)[0] in self._settings.namespaces

    async def _work(self, reconciler: Reconciler) -> None:
        while True:
            key = await self.queue.take()
            try:
                again = await reconciler.reconcile(key)
            except (ClusterError, RedisUnavailable) as error:
                wait = self.queue.failed(key)
                log.warning("reconcile_failed", extra={"service": key, "error": str(error), "retry_s": round(wait, 2)})
            except Exception:
                wait = self.queue.failed(key)
                log.exception("reconcile_crashed", extra={"service": key, "retry_s": round(wait, 2)})
            else:
                self.queue.succeeded(key)
                if again is not None:
                    self.queue.add_after(key, again)
            finally:
                self.queue.done(key)
                self.publisher.seen(key)

    async def _resync(self, reconciler: Reconciler) -> None:
        """Finds what no watch reported: what was deleted while one was broken, Secrets that somebody changed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.resync_s):
                    await self._gap.wait()
                    await asyncio.sleep(self._settings.gap_pause_s)  # a list tells of many objects
            self._gap.clear()
            try:
                keys = await self._list_services(reconciler)
            except ClusterError as error:
                log.warning("resync_failed", extra={"error": str(error)})
                continue
            reconciler.forget()
            for key in keys | reconciler.served_names.services() | set(self.publisher.entries()):
                if self._watched(key):
                    self.queue.add(key)

    async def _watch_health(self, reconciler: Reconciler) -> None:
        """Services say whether their live data is fresh. Watches that do not report our own writes end everything."""
        healthy, generation = True, self._link.generation
        while True:
            await asyncio.sleep(self._settings.health_poll_s)
            other_redis = self._settings.redis_acl and generation not in (0, self._link.generation)
            generation = self._link.generation
            if self.redis_healthy() != healthy or other_redis:
                healthy = self.redis_healthy()
                if other_redis:  # it may not know the agents' users
                    reconciler.forget()
                for key in reconciler.served_names.services():
                    self.queue.add(key)
            self._check_watches()

    async def _watch_loads(self) -> None:
        """Services that scale by themselves are planned for when their number of replicas should change."""
        while True:
            await asyncio.sleep(self._settings.scaling_poll_s)
            fresh = self.redis_healthy() and self._link.healthy
            for key in self.autoscaler.services():
                leases = self.feed.leases(key) if fresh else {}
                if self.autoscaler.look(key, leases, self.feed.demand(key), self._clock()):
                    self.queue.add(key)

    def _check_watches(self) -> None:
        if self._unheard_since is None:
            return
        if max(source.heard for source in self.sources) >= self._unheard_since:
            self._unheard_since = None
        elif self._monotonic() - self._unheard_since > self._settings.silence_s:
            raise SourceEnded(f"nothing was reported for {self._settings.silence_s:.0f} s after a write of our own")

    def _wrote(self) -> None:
        if self._unheard_since is None:
            self._unheard_since = self._monotonic()

    def _found(self, key: str) -> None:
        if self._watched(key):
            self.queue.add(key)

    def _stamped(self, stamp: tuple[int, int] | None) -> None:
        self.feed.expect(stamp)

    async def _purge(self, key: str) -> None:
        namespace, name = key.split("/", 1)
        await LeaseStore(self._link, self._installation.service(namespace, name)).purge()
