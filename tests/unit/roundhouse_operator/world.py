"""A small world around the operator: in-memory API, a kubelet under the test's control, agents and leases by hand."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from roundhouse_kv.catalogue_store import Catalogue
from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.records import Lease, ServiceEntry
from roundhouse_local.api import NODE, MemoryCluster
from roundhouse_local.api.metadata import Stamps
from roundhouse_local.api.schema import SchemaValidator
from roundhouse_operator.access import Access
from roundhouse_operator.agents import DrainAnswer
from roundhouse_operator.api.crds import crds
from roundhouse_operator.api.parse import COMPLAINTS
from roundhouse_operator.autoscaler import Autoscaler
from roundhouse_operator.catalogue import CataloguePublisher
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, POD, NotFound, Obj
from roundhouse_operator.errors import AgentError
from roundhouse_operator.queue import Backlog
from roundhouse_operator.reconcile import Context, Reconciler
from roundhouse_operator.served_names import ServedNames
from roundhouse_operator.settings import Settings
from roundhouse_operator.timestamps import to_timestamp

START = 1_700_000_000.0
SETTINGS = Settings(installation="test", redis_url="redis://redis:6379/0", gateway_url="http://gw/v1", default_gpus=0)


def service(name: str = "llama", namespace: str = "default", **spec: Any) -> Obj:
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": "hf://org/name", **spec},
    }


def lease(uid: str, pod_uid: str, **fields: Any) -> Lease:
    values: dict[str, Any] = {"replica": "", "epoch": 1, "source": 1, "state": "ready", **fields}
    return Lease(replica_uid=uid, pod_uid=pod_uid, **values)


async def until(check: Callable[[], object]) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + 10
    while not check():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.001)


class FakeAgents:
    """By pod address: the deadline that each agent was told. ``answers`` scripts what it says."""

    def __init__(self) -> None:
        self.deadlines: dict[str, float] = {}
        self.undrained: list[str] = []
        self.answers: dict[str, str] = {}
        self.down: set[str] = set()

    async def drain(self, address: str, deadline: float) -> DrainAnswer:
        self._reach(address)
        self.deadlines[address] = deadline
        return DrainAnswer(self.answers.get(address, "draining"), 1000)

    async def undrain(self, address: str) -> DrainAnswer:
        self._reach(address)
        self.undrained.append(address)
        return DrainAnswer("drained" if self.answers.get(address) == "drained" else "ready")

    def _reach(self, address: str) -> None:
        if address in self.down:
            raise AgentError(f"{address} does not answer")


class FakeLeases:
    def __init__(self) -> None:
        self.by_uid: dict[str, Lease] = {}
        self.followed: dict[str, list[str]] = {}
        self.unread: set[str] = set()

    def follow(self, service_key: str, replica_uids: Iterable[str]) -> None:
        self.followed[service_key] = list(replica_uids)

    def forget(self, service_key: str) -> None:
        self.followed.pop(service_key, None)

    def leases(self, service_key: str) -> Mapping[str, Lease]:
        return {uid: self.by_uid[uid] for uid in self.followed.get(service_key, []) if uid in self.by_uid}

    def unreadable(self, service_key: str) -> frozenset[str]:
        return frozenset(uid for uid in self.followed.get(service_key, []) if uid in self.unread)


class FakeUsers:
    """Redis users by name, with their passwords."""

    def __init__(self) -> None:
        self.passwords: dict[str, str] = {}
        self.down = False

    async def allow(self, user: str, password: str, namespace: str) -> None:
        if self.down:
            raise RedisUnavailable("no answer")
        self.passwords[user] = password

    async def remove(self, user: str) -> None:
        self.passwords.pop(user, None)


class FakeStore:
    """The stored catalogue."""

    def __init__(self) -> None:
        self.term = 0
        self.version = 0
        self.services: dict[str, ServiceEntry] = {}

    async def take_term(self) -> int:
        self.term += 1
        return self.term

    async def publish(self, term: int, services: dict[str, ServiceEntry]) -> int:
        if services != self.services:
            self.services, self.version = dict(services), self.version + 1
        return self.version

    async def read(self) -> Catalogue | None:
        return Catalogue(self.term, self.version, self.services) if self.services else None


class CountingCluster(MemoryCluster):
    """Counts writes, and refuses what a test wants refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.writes: list[str] = []
        self.refuse_pods: Exception | None = None

    async def create(self, kind: Any, obj: Obj, **more: Any) -> Obj:
        self.writes.append(f"create {kind.kind}")
        if kind == POD and self.refuse_pods is not None:
            raise self.refuse_pods
        return await super().create(kind, obj, **more)

    async def apply(self, kind: Any, obj: Obj, **more: Any) -> Obj:
        self.writes.append(f"apply {kind.kind}")
        return await super().apply(kind, obj, **more)

    async def delete(self, kind: Any, namespace: str, name: str, **more: Any) -> None:
        self.writes.append(f"delete {kind.kind}")
        await super().delete(kind, namespace, name, **more)

    async def patch_status(self, kind: Any, namespace: str, name: str, status: Obj, **more: Any) -> Obj:
        self.writes.append(f"status {kind.kind}")
        return await super().patch_status(kind, namespace, name, status, **more)


class World:
    """``reconcile`` runs every key that was queued; time moves only by `wait`."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.now = START
        self.agents, self.leases, self.store = FakeAgents(), FakeLeases(), FakeStore()
        self.users = FakeUsers()
        self.redis_healthy = True
        self.purged: list[str] = []
        counter, addresses = itertools.count(1), itertools.count(1)
        stamps = Stamps(lambda: self.now, uid=lambda: f"uid-{next(counter)}")
        self.cluster = CountingCluster(SchemaValidator(crds().values(), COMPLAINTS), stamps=stamps)
        self._addresses = addresses
        self.backlog = Backlog(random=random.Random(1))
        self.publisher = CataloguePublisher(self.store, on_stamp=lambda _: None, on_found=self.queue)
        self.context = Context(
            cluster=self.cluster,
            agents=self.agents,
            leases=self.leases,
            catalogue=self.publisher,
            settings=settings,
            requeue=self.queue,
            purge=self._purge,
            redis_healthy=lambda: self.redis_healthy,
            wrote=lambda: None,
            clock=lambda: self.now,
            access=self._access(settings),
        )
        self.reconciler = Reconciler(self.context)

    def queue(self, key: str) -> None:
        self.backlog.add(key, self.now)

    def restart_operator(self) -> None:
        """All of its memory is lost but for what is in the cluster and in Redis."""
        fresh = {"served_names": ServedNames(), "autoscaler": Autoscaler()}
        self.context = replace(self.context, access=self._access(self.context.settings), **fresh)
        self.reconciler = Reconciler(self.context)

    def _access(self, settings: Settings) -> Access:
        return Access(self.cluster, self.users, settings)

    async def _purge(self, key: str) -> None:
        self.purged.append(key)

    async def wait(self, seconds: float, key: str = "default/llama") -> None:
        """Let time pass and reconcile."""
        self.now += seconds
        await self.reconcile(key)

    async def reconcile(self, *keys: str) -> None:
        for key in keys or ("default/llama",):
            self.queue(key)
        for _ in range(20):
            taken = self.backlog.take(self.now)
            if taken is None:
                return
            again = await self.reconciler.reconcile(taken)
            if again is not None:
                self.backlog.add_at(taken, self.now + again)
            self.backlog.done(taken)
            await self.cluster.settle()

    # What is there.

    async def service(self, key: str = "default/llama") -> Obj:
        return await self.cluster.get(INFERENCE_SERVICE, *key.split("/", 1))

    async def replicas(self) -> list[Obj]:
        objs, _ = await self.cluster.list(ENGINE_REPLICA)
        return sorted(objs, key=lambda obj: (obj["metadata"]["creationTimestamp"], int(obj["metadata"]["uid"][4:])))

    async def pods(self) -> list[Obj]:
        objs, _ = await self.cluster.list(POD)
        return sorted(objs, key=lambda obj: int(obj["metadata"]["uid"][4:]))

    async def condition(self, kind: str, key: str = "default/llama") -> Obj:
        status = (await self.service(key))["status"]
        return next(item for item in status["conditions"] if item["type"] == kind)

    # What users do.

    async def add_node(self, gpus: int = 8) -> None:
        allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        await self.cluster.create(NODE, {"metadata": {"name": "node"}, "status": {"allocatable": allocatable}})

    async def apply(self, obj: Obj) -> Obj:
        return await self.cluster.apply(INFERENCE_SERVICE, obj, manager="kubectl", force=True)

    # What the kubelet does.

    async def start(self, pod: Obj, *, ready: bool = True) -> None:
        """Everything runs; the engine answers if ``ready``."""
        uid = pod["metadata"]["uid"]
        address = (pod.get("status") or {}).get("podIP") or f"10.0.0.{next(self._addresses)}"
        running = {"state": {"running": {"startedAt": to_timestamp(self.now)}}, "ready": True, "restartCount": 0}
        done = {"state": {"terminated": {"exitCode": 0, "finishedAt": to_timestamp(self.now)}}, "restartCount": 0}
        init = [{"name": "agent", **running}]
        if any(item["name"] == "fetch" for item in pod["spec"]["initContainers"]):
            init.append({"name": "fetch", **done})
        await self.pod_status(
            pod,
            phase="Running",
            podIP=address,
            conditions=[{"type": "Ready", "status": "True" if ready else "False"}],
            initContainerStatuses=init,
            containerStatuses=[{"name": "engine", **running}],
        )
        owner = pod["metadata"]["ownerReferences"][0]["uid"]
        if ready:
            self.leases.by_uid[owner] = lease(owner, uid, stack={"engine": "torch"})

    async def pod_status(self, pod: Obj, **fields: Any) -> None:
        meta = pod["metadata"]
        there = await self.cluster.get(POD, meta["namespace"], meta["name"])
        status = {**(there.get("status") or {}), **fields}
        await self.cluster.patch_status(POD, meta["namespace"], meta["name"], status)

    async def crash(self, pod: Obj, restarts: int, message: str = "", *, running: bool = False) -> None:
        """The engine has ended for the n-th time; back again if ``running``."""
        ended = {"exitCode": 1, "reason": "Error", "message": message, "finishedAt": to_timestamp(self.now)}
        state: Obj = {"running": {"startedAt": to_timestamp(self.now)}} if running else {"terminated": ended}
        status = {"name": "engine", "state": state, "lastState": {"terminated": ended}, "restartCount": restarts}
        await self.pod_status(pod, containerStatuses=[status], conditions=[{"type": "Ready", "status": "False"}])

    async def start_all(self) -> None:
        for pod in await self.pods():
            if "deletionTimestamp" not in pod["metadata"]:
                await self.start(pod)

    async def finish_terminating(self) -> None:
        """The kubelet is done with every pod that was deleted."""
        for pod in await self.pods():
            if "deletionTimestamp" in pod["metadata"]:
                meta = pod["metadata"]
                await self.cluster.delete(POD, meta["namespace"], meta["name"], uid=meta["uid"], grace_seconds=0)
        await self.cluster.settle()

    async def delete(self, kind: Any, obj: Obj, **more: Any) -> None:
        meta = obj["metadata"]
        await self.cluster.delete(kind, meta["namespace"], meta["name"], **more)
        await self.cluster.settle()

    async def ready(self, key: str = "default/llama", *, rounds: int = 8) -> None:
        """Start what is made until nothing more is."""
        for _ in range(rounds):
            await self.reconcile(key)
            await self.start_all()
            await self.finish_terminating()
        await self.reconcile(key)

    async def exists(self, kind: Any, name: str, namespace: str = "default") -> bool:
        try:
            await self.cluster.get(kind, namespace, name)
        except NotFound:
            return False
        return True
