"""Carries out plans: reads what is there, asks `plan`, writes the differences.

Everything is read anew from the API server each time, never from a cache that a broken watch may have left behind. A
creation is followed by another plan, so that an EngineReplica gets its pod and its status in the same pass.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from roundhouse_kv.records import Lease

from roundhouse_operator.access import Access
from roundhouse_operator.agents import Agents
from roundhouse_operator.autoscaler import Autoscaler
from roundhouse_operator.catalogue import CataloguePublisher
from roundhouse_operator.claims import Claims
from roundhouse_operator.cluster import (
    ENGINE_REPLICA,
    EVENT,
    INFERENCE_SERVICE,
    POD,
    SECRET,
    AlreadyExists,
    Cluster,
    ClusterError,
    Conflict,
    Kind,
    NotFound,
    Obj,
    find,
)
from roundhouse_operator.errors import AgentError
from roundhouse_operator.events import counted, events
from roundhouse_operator.installations import Claim
from roundhouse_operator.live import Live
from roundhouse_operator.names import service_labels
from roundhouse_operator.plan import DrainOrder, Observed, Plan, Undrain, plan
from roundhouse_operator.pod_facts import owner_uid
from roundhouse_operator.served_names import ServedNames
from roundhouse_operator.settings import Settings
from roundhouse_operator.upkeep import Upkeep

log = logging.getLogger(__name__)

_MOST_ROUNDS = 4  # replicas, pods, statuses; one more for a name that was taken
_TRANSIENT = frozenset({0, 408, 429, 500, 502, 503, 504})


class Leases(Protocol):
    """`roundhouse_kv.operator_feed.OperatorFeed`, as far as it is used here."""

    def follow(self, service_key: str, replica_uids: Iterable[str]) -> None: ...

    def forget(self, service_key: str) -> None: ...

    def leases(self, service_key: str) -> Mapping[str, Lease]: ...

    def unreadable(self, service_key: str) -> frozenset[str]: ...


@dataclass(slots=True)
class Context:
    """What a `Reconciler` works with. ``requeue`` looks at a service soon; ``purge`` deletes its keys in Redis.

    ``redis_healthy``: Redis answers, apart from short gaps. ``wrote`` hears of every change to a watched object.
    """

    cluster: Cluster
    agents: Agents
    leases: Leases
    catalogue: CataloguePublisher
    settings: Settings
    requeue: Callable[[str], None]
    purge: Callable[[str], Any]
    redis_healthy: Callable[[], bool]
    wrote: Callable[[], None]
    access: Access
    autoscaler: Autoscaler = field(default_factory=Autoscaler)
    clock: Callable[[], float] = time.time
    served_names: ServedNames = field(default_factory=ServedNames)


class Reconciler:
    """``reconcile(key)`` may run for many keys at once, but for each key only once at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._drained: dict[str, frozenset[str]] = {}
        self._conflicts: dict[str, dict[str, str]] = {}
        self._hindrances: dict[str, str] = {}
        self._upkeep = Upkeep(context.cluster, context.settings)
        self._claims = Claims(context.settings.installation)

    @property
    def served_names(self) -> ServedNames:
        return self._context.served_names

    def forget(self) -> None:
        """Look after Secrets and companions again, in case somebody changed them."""
        self._context.access.forget()
        self._upkeep.forget()

    def claim(self, key: str, service: Obj) -> set[str]:
        """Who serves it, and under which names; returns the other services whose names may have changed hands."""
        if self._claims.see(key, service):
            return self.served_names.claim(key, service)
        return self.served_names.drop(key)

    async def reconcile(self, key: str) -> float | None:
        """Seconds after which to look again without being told, None for never. Raises what was not handled."""
        context, (namespace, name) = self._context, key.split("/", 1)
        try:
            service = await context.cluster.get(INFERENCE_SERVICE, namespace, name)
        except NotFound:
            return await self._gone(key)
        claim = self._claims.judge(key, service, context.clock())
        if not claim.serves:
            return await self._leave_alone(key, service, claim)
        for other in context.served_names.claim(key, service):
            context.requeue(other)
        observed = replace(await self._observe(key, service), contender=claim.contender)
        observed, todo = await self._create(key, observed)
        self._publish(key, observed, todo)
        await self._apply_and_delete(key, todo)
        again = await self._tell_agents(key, todo)
        await self._write_statuses(observed, todo)
        context.autoscaler.follow(key, todo.scaling, context.clock())
        again |= await self._keep_companions(key, service)
        later = context.settings.retry_s if context.access.waits(namespace) else None
        return 0.0 if again else _soonest(todo.requeue_after, claim.again, later)

    async def _leave_alone(self, key: str, service: Obj, claim: Claim) -> float | None:
        """Another installation serves it."""
        self._forget(key)
        if claim.status is not None:
            await self._write_status(INFERENCE_SERVICE, service, dict(claim.status))
        return claim.again

    def _forget(self, key: str) -> None:
        context = self._context
        for other in context.served_names.drop(key):
            context.requeue(other)
        context.catalogue.remove(key)
        context.leases.forget(key)
        context.autoscaler.forget(key)
        self._upkeep.forget(key)
        self._drained.pop(key, None)
        self._conflicts.pop(key, None)
        self._hindrances.pop(key, None)

    async def _gone(self, key: str) -> float | None:
        """The service is deleted. Its pods go by themselves; when they are gone, so is everything in Redis."""
        context, (namespace, name) = self._context, key.split("/", 1)
        self._forget(key)
        self._claims.drop(key)
        pods, _ = await context.cluster.list(POD, namespace, service_labels(name))
        if pods:
            return context.settings.drain_poll_s
        await context.purge(key)
        await context.access.withdraw(namespace, context.served_names.services())
        log.info("service_gone", extra={"service": key})
        return None

    # Reading.

    async def _observe(self, key: str, service: Obj) -> Observed:
        context, (namespace, name) = self._context, key.split("/", 1)
        labels = service_labels(name)
        (replicas, _), (pods, _), missing, secret = await asyncio.gather(
            context.cluster.list(ENGINE_REPLICA, namespace, labels),
            context.cluster.list(POD, namespace, labels),
            self._missing_secret(namespace, service),
            context.access.grant(namespace),
        )
        conflicts = (secret, self._hindrances.get(key, ""), *self._conflicts.get(key, {}).values())
        return Observed(
            service,
            tuple(replicas),
            tuple(pods),
            missing_secret=missing,
            lost_names=context.served_names.lost(key),
            conflict="; ".join(filter(None, conflicts)),
        )

    async def _missing_secret(self, namespace: str, service: Obj) -> str:
        reference = (service.get("spec") or {}).get("modelSecret")
        name = reference.get("name") if isinstance(reference, dict) else None
        if not isinstance(name, str) or not name:
            return ""
        there = await find(self._context.cluster, SECRET, namespace, name)
        return "" if there is not None else name

    def _live(self, key: str) -> Live:
        context = self._context
        return Live(
            healthy=context.redis_healthy(),
            leases=context.leases.leases(key),
            unreadable=context.leases.unreadable(key),
            loads=context.autoscaler.history(key),
            drained=self._drained.get(key, frozenset()),
            entry=context.catalogue.entry(key),
        )

    # Writing.

    async def _create(self, key: str, observed: Observed) -> tuple[Observed, Plan]:
        """Create and plan again until nothing is to be created; the last plan says what else to do."""
        context = self._context
        for _ in range(_MOST_ROUNDS):
            todo = plan(observed, self._live(key), context.clock(), context.settings)
            wanted = [(kind, obj) for kind, obj in todo.create if obj["metadata"]["name"] not in observed.refusals]
            if not wanted:
                break
            for kind, obj in wanted:
                observed = await self._create_one(observed, kind, obj)
        return observed, todo

    async def _create_one(self, observed: Observed, kind: Kind, obj: Obj) -> Observed:
        name = obj["metadata"]["name"]
        try:
            created = await self._create_or_find(kind, obj)
        except ClusterError as error:
            if error.status in _TRANSIENT or kind != POD:
                raise
            log.warning("create_refused", extra={"kind": kind.kind, "object": name, "error": str(error)})
            return replace(observed, refusals={**observed.refusals, name: str(error)})
        self._context.wrote()
        log.info("created", extra={"kind": kind.kind, "object": name, "namespace": obj["metadata"]["namespace"]})
        if kind == POD:
            return replace(observed, pods=(*observed.pods, created))
        return replace(observed, replicas=(*observed.replicas, created))

    async def _create_or_find(self, kind: Kind, obj: Obj) -> Obj:
        """An object of the same owner under that name is the one we wanted; another owner's is in the way."""
        try:
            return await self._context.cluster.create(kind, obj)
        except AlreadyExists as error:
            meta = obj["metadata"]
            there = await self._context.cluster.get(kind, meta["namespace"], meta["name"])
            if owner_uid(there) != owner_uid(obj):
                raise ClusterError(
                    f"{kind.kind} {meta['name']} belongs to another owner: waiting for it to go", 0
                ) from error
            return there

    async def _apply_and_delete(self, key: str, todo: Plan) -> None:
        cluster = self._context.cluster
        for kind, obj in todo.apply:
            await self._apply(key, kind, obj)
        for item in todo.delete:
            await cluster.delete(item.kind, item.namespace, item.name, uid=item.uid, grace_seconds=item.grace_seconds)
            self._context.wrote()
            log.info("deleted", extra={"kind": item.kind.kind, "object": item.name, "namespace": item.namespace})

    async def _apply(self, key: str, kind: Kind, obj: Obj) -> None:
        """An object that is gone, or another one by now, is planned for the next time; so is a field of somebody else,
        and that one is told.
        """
        name, conflicts = obj["metadata"]["name"], self._conflicts.setdefault(key, {})
        conflicts.pop(name, None)
        try:
            await self._context.cluster.apply(kind, obj)
            self._context.wrote()
        except (Conflict, NotFound) as error:
            log.info("apply_conflict", extra={"object": name, "error": str(error)})
            if "Apply failed" in str(error):
                conflicts[name] = f"{kind.kind} {name}: {error}"

    async def _keep_companions(self, key: str, service: Obj) -> bool:
        """Last, because people wait for the rest. True when the status must say something else about them now."""
        found = await self._upkeep.keep(key, service)
        before = self._hindrances.pop(key, "")
        if found:
            self._hindrances[key] = found
        return found != before

    async def _tell_agents(self, key: str, todo: Plan) -> bool:
        """True when an answer changes the plan."""
        orders: list[DrainOrder | Undrain] = [*todo.drains, *todo.undrains]
        answers = await asyncio.gather(*(self._tell(key, order) for order in orders))
        before = self._drained.get(key, frozenset())
        drained = {order.replica_uid for order, answer in zip(orders, answers, strict=True) if answer}
        self._drained[key] = frozenset(drained | (before & {order.replica_uid for order in orders}))
        return bool(drained - before)

    async def _tell(self, key: str, order: DrainOrder | Undrain) -> bool:
        """True when this replica has drained. An agent that does not answer is told again the next time."""
        try:
            if isinstance(order, DrainOrder):
                return (await self._context.agents.drain(order.address, order.deadline)).drained
            if order.address and (await self._context.agents.undrain(order.address)).drained:
                return True
        except AgentError as error:
            log.info("agent_not_told", extra={"replica_uid": order.replica_uid, "error": str(error)})
            return False
        # Only now that the agent has agreed: a marked replica is asked again, an unmarked one is not.
        await self._apply(key, ENGINE_REPLICA, order.mark)
        return False

    async def _write_statuses(self, observed: Observed, todo: Plan) -> None:
        for obj in observed.replicas:
            status = todo.statuses.get(obj["metadata"]["name"])
            if status is not None:
                await self._write_status(ENGINE_REPLICA, obj, status)
        if todo.status is not None:
            await self._write_status(INFERENCE_SERVICE, observed.service, todo.status)
            await self._tell_people(observed.service, todo.status)

    async def _tell_people(self, service: Obj, status: dict[str, Any]) -> None:
        """Events are a courtesy: one that cannot be written is not tried again."""
        cluster = self._context.cluster
        for event in events(service, status, self._context.clock()):
            meta = event["metadata"]
            try:
                with suppress(AlreadyExists):
                    await cluster.create(EVENT, event)
                    continue
                before = await cluster.get(EVENT, meta["namespace"], meta["name"])
                await cluster.apply(EVENT, counted(event, before), force=True)
            except ClusterError as error:
                log.info("event_not_written", extra={"reason": event["reason"], "error": str(error)})

    async def _write_status(self, kind: Kind, obj: Obj, status: dict[str, Any]) -> None:
        if status == (obj.get("status") or {}):
            return
        meta = obj["metadata"]
        try:
            await self._context.cluster.patch_status(kind, meta["namespace"], meta["name"], status, uid=meta["uid"])
            self._context.wrote()
        except (NotFound, Conflict):
            return

    def _publish(self, key: str, observed: Observed, todo: Plan) -> None:
        context = self._context
        context.leases.follow(key, [obj["metadata"]["uid"] for obj in observed.replicas])
        if todo.entry is not None:
            context.catalogue.put(key, todo.entry)


def _soonest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
