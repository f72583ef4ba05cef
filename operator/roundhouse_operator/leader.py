"""One operator leads: it holds a Lease in its own namespace and renews it.

Every write carries the resourceVersion that was read, so of two candidates one gets a conflict. A foreign Lease counts
as expired only when it has not changed for its whole duration by *this* process's clock, as clocks of machines differ.
A leader that could not renew for the renew time stops leading at once, well before anybody else may begin.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from roundhouse_operator.cluster import AlreadyExists, Cluster, ClusterError, Conflict, Kind, Obj, find

log = logging.getLogger(__name__)

LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")


@dataclass(frozen=True, slots=True)
class Election:
    """``identity`` is this candidate's own, like its pod's name. Another takes over after ``duration_s`` of silence."""

    namespace: str
    name: str
    identity: str
    duration_s: int = 15
    renew_s: float = 10.0
    period_s: float = 2.0


class Leader:
    """``acquire`` waits to lead; ``hold`` returns when leading has ended. ``turned`` is when its loop last ran."""

    def __init__(
        self,
        cluster: Cluster,
        election: Election,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._election = election
        self._clock = clock
        self._monotonic = monotonic
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed = float("-inf")
        self.turned = monotonic()

    @property
    def leads(self) -> bool:
        return self._monotonic() - self._renewed < self._election.renew_s

    async def acquire(self) -> None:
        while True:
            if await self.try_once():
                break
            await asyncio.sleep(self._election.period_s)
        log.info("leading", extra={"lease": self._election.name, "identity": self._election.identity})

    async def hold(self) -> None:
        """Renew until that has failed for too long, or somebody else holds the Lease."""
        while self.leads:
            await asyncio.sleep(self._election.period_s)
            if not await self.try_once() and self._holder_is_another:
                break
        log.error("lease_lost", extra={"lease": self._election.name, "identity": self._election.identity})

    async def release(self) -> None:
        """Let another one begin at once."""
        if not self.leads:
            return
        self._renewed = float("-inf")
        try:
            lease = await self._read()
            if lease is not None and _holder(lease) == self._election.identity:
                await self._write(lease, holder="")
        except ClusterError as error:
            log.info("lease_not_released", extra={"error": str(error)})

    async def try_once(self) -> bool:
        """Read the Lease and take or renew it, if it is free or ours. True when this process leads now."""
        self.turned = started = self._monotonic()
        try:
            async with asyncio.timeout(self._election.renew_s / 2):
                lease = await self._read()
                if lease is not None and not self._may_take(lease):
                    return False
                await self._write(lease, holder=self._election.identity)
        except (AlreadyExists, Conflict):
            return False
        except (ClusterError, TimeoutError) as error:
            log.warning("lease_not_renewed", extra={"error": str(error) or type(error).__name__})
            return False
        self._renewed = started
        return True

    @property
    def _holder_is_another(self) -> bool:
        return self._seen[0].split("/", 1)[0] not in ("", self._election.identity)

    def _may_take(self, lease: Obj) -> bool:
        holder = _holder(lease)
        if holder in ("", self._election.identity):
            self._seen = (f"{holder}/", self._monotonic())
            return True
        state = f"{holder}/{lease['metadata'].get('resourceVersion')}"
        if state != self._seen[0]:
            self._seen = (state, self._monotonic())
        duration = float((lease.get("spec") or {}).get("leaseDurationSeconds") or self._election.duration_s)
        return self._monotonic() - self._seen[1] >= duration

    async def _read(self) -> Obj | None:
        return await find(self._cluster, LEASE, self._election.namespace, self._election.name)

    async def _write(self, lease: Obj | None, holder: str) -> None:
        election = self._election
        now = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = (lease or {}).get("spec") or {}
        same = _holder(lease) == holder if lease is not None else False
        spec: Obj = {
            "holderIdentity": holder,
            "leaseDurationSeconds": election.duration_s,
            "renewTime": now,
            "acquireTime": before.get("acquireTime", now) if same else now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if same or not before else 1),
        }
        meta: Obj = {"namespace": election.namespace, "name": election.name}
        obj: Obj = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": meta, "spec": spec}
        if lease is None:  # empty, because what a create sets could not be applied to later: it has another owner
            lease = await self._cluster.create(LEASE, {key: obj[key] for key in obj if key != "spec"})
        meta |= {"uid": lease["metadata"]["uid"], "resourceVersion": lease["metadata"]["resourceVersion"]}
        await self._cluster.apply(LEASE, obj)


def _holder(lease: Obj) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
