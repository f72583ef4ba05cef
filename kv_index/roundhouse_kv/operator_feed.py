"""What the leading operator follows in Redis: leases of all services, demand, and whether its catalogue is still there.

One poll a second, one round trip for each of the three. Values stay as they were while Redis is unhealthy, and a
lease that is missing is taken as missing only once Redis is settled: it then means unknown, not dead.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from roundhouse_kv.catalogue_store import CatalogueStore
from roundhouse_kv.demand_store import DemandStore
from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.lease_store import parse_leases
from roundhouse_kv.names import Installation, ServiceKeys
from roundhouse_kv.records import Demand, GatewayBeat, Lease
from roundhouse_kv.redis_link import RedisLink

log = logging.getLogger(__name__)

_CHANGES: Final = ("state", "epoch", "pod_uid", "hung", "message", "profile", "progress", "stack", "agent_version")


class OperatorFeed:
    """``on_change(service_key)``: something that a status shows has changed in a lease, or a lease came or went.

    ``on_republish()``: the catalogue in Redis is not the one given to `expect`, or the server is another one.
    Both are called from the poll, in the loop's thread.
    """

    def __init__(
        self,
        link: RedisLink,
        installation: Installation,
        *,
        on_change: Callable[[str], None],
        on_republish: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        period_s: float = 1.0,
    ) -> None:
        self._link = link
        self._names = installation
        self._on_change = on_change
        self._on_republish = on_republish
        self._clock = clock
        self._period = period_s
        self._catalogue = CatalogueStore(link, installation)
        self._demand_store = DemandStore(link, installation)
        self._followed: dict[str, tuple[str, ...]] = {}
        self._leases: dict[str, dict[str, Lease]] = {}
        self._unreadable: dict[str, frozenset[str]] = {}
        self._demand: dict[str, dict[int, Demand]] = {}
        self._gateways: dict[int, GatewayBeat] = {}
        self._expected: tuple[int, int] | None = None
        self._expected_run_id = ""
        self._polled_at: float | None = None

    def follow(self, service_key: str, replica_uids: Iterable[str]) -> None:
        """Read these replicas' leases from the next poll on; replaces the service's former set."""
        uids = tuple(replica_uids)
        self._followed[service_key] = uids
        known = self._leases.setdefault(service_key, {})
        for gone in known.keys() - set(uids):
            del known[gone]

    def forget(self, service_key: str) -> None:
        self._followed.pop(service_key, None)
        self._leases.pop(service_key, None)
        self._unreadable.pop(service_key, None)
        self._demand.pop(service_key, None)

    def expect(self, stamp: tuple[int, int] | None) -> None:
        """(term, version) of the catalogue that this operator has published last; None: it is not the writer."""
        self._expected = stamp
        self._expected_run_id = self._link.run_id

    def leases(self, service_key: str) -> Mapping[str, Lease]:
        """By replica uid."""
        return self._leases.get(service_key, {})

    def unreadable(self, service_key: str) -> frozenset[str]:
        """Uids of replicas that have a lease which cannot be read: their agents are of another major version."""
        return self._unreadable.get(service_key, frozenset())

    def demand(self, service_key: str) -> Mapping[int, Demand]:
        """By gateway incarnation; a gateway that does not report is absent."""
        return self._demand.get(service_key, {})

    @property
    def gateways(self) -> Mapping[int, GatewayBeat]:
        """Gateways alive, by incarnation."""
        return self._gateways

    @property
    def age(self) -> float | None:
        """Seconds since the last poll that went through; None before the first."""
        return None if self._polled_at is None else self._clock() - self._polled_at

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            try:
                await self._check_catalogue()
                await self._read_leases()
                await self._read_demand()
                self._polled_at = self._clock()
            except RedisUnavailable as error:
                log.debug("operator_poll_failed", extra={"error": str(error)})
            await asyncio.sleep(self._period)

    async def _check_catalogue(self) -> None:
        expected = self._expected
        if expected is None:
            return
        stamp = await self._catalogue.stamp()
        if expected == self._expected and (stamp != expected or self._link.run_id != self._expected_run_id):
            log.info("catalogue_differs", extra={"stored": stamp, "expected": expected})
            self._on_republish()

    async def _read_leases(self) -> None:
        asked = [(key, uids) for key, uids in self._followed.items() if uids]
        if not asked:
            return
        pipe = self._link.client.pipeline(transaction=False)
        for key, uids in asked:
            names = self._service(key)
            pipe.mget([names.lease(uid) for uid in uids])
        answers = await self._link.ask(pipe.execute())
        for (key, uids), values in zip(asked, answers, strict=True):
            if self._followed.get(key) == uids:
                leases = parse_leases(uids, values)
                present = {uid for uid, data in zip(uids, values, strict=True) if data is not None}
                self._take(key, leases, frozenset(present - leases.keys()))

    def _take(self, key: str, found: dict[str, Lease], unreadable: frozenset[str]) -> None:
        before, unread = self._leases[key], self._unreadable.get(key, frozenset())
        after = found if self._link.settled else {uid: lease for uid, lease in before.items() if uid not in unreadable}
        after |= found
        self._leases[key], self._unreadable[key] = after, unreadable
        if (
            unread != unreadable
            or before.keys() != after.keys()
            or any(_shown(before[uid]) != _shown(after[uid]) for uid in after)
        ):
            self._on_change(key)

    async def _read_demand(self) -> None:
        self._gateways = await self._demand_store.gateways()
        names = {self._service(key): key for key in self._followed}
        found = await self._demand_store.read_all(names, self._gateways)
        self._demand = {names[each]: demand for each, demand in found.items()}

    def _service(self, key: str) -> ServiceKeys:
        namespace, _, name = key.partition("/")
        return self._names.service(namespace, name)


def _shown(lease: Lease) -> tuple[Any, ...]:
    """What statuses are made of; loads are not."""
    return tuple(getattr(lease, name) for name in _CHANGES)
