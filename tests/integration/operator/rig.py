"""The whole operator against the in-memory API and a real Valkey; pods and agents are played by a task."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import msgspec
from roundhouse_kv.catalogue_store import CatalogueStore
from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.lease_store import LeaseStore
from roundhouse_kv.names import Installation
from roundhouse_kv.records import Lease, ServiceEntry
from roundhouse_kv.redis_link import RedisLink
from roundhouse_local.api import NODE, MemoryCluster
from roundhouse_local.api.schema import SchemaValidator
from roundhouse_operator.api.crds import crds
from roundhouse_operator.api.parse import COMPLAINTS
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, POD, Kind, NotFound, Obj
from roundhouse_operator.core import OperatorCore
from roundhouse_operator.settings import Settings
from roundhouse_operator.tasks import end_all
from roundhouse_operator.timestamps import to_timestamp

from tests.integration.kv.harness import Valkey, config
from tests.unit.roundhouse_operator.world import FakeAgents

SETTINGS = Settings(
    installation="test",
    redis_url="unix:///redis.sock",
    default_gpus=0,
    resync_s=0.5,
    health_poll_s=0.05,
    redis_patience_s=0.5,
    drain_poll_s=0.05,
    retry_s=0.1,
)


class Kubelet:
    """Starts every pod at once, with the lease of its agent, and ends those that are deleted."""

    def __init__(self, cluster: MemoryCluster, link: RedisLink) -> None:
        self._cluster = cluster
        self._link = link
        self._addresses: dict[str, str] = {}
        self.lease_changes: dict[str, Any] = {}

    async def run(self) -> None:
        while True:
            pods, _ = await self._cluster.list(POD)
            for pod in pods:
                if "deletionTimestamp" in pod["metadata"]:
                    meta = pod["metadata"]
                    await self._cluster.delete(POD, meta["namespace"], meta["name"], uid=meta["uid"], grace_seconds=0)
                elif pod["spec"].get("nodeName"):
                    await self._run(pod)
            await asyncio.sleep(0.02)

    async def _run(self, pod: Obj) -> None:
        meta = pod["metadata"]
        address = self._addresses.setdefault(meta["uid"], f"10.0.0.{len(self._addresses) + 1}")
        if "podIP" not in pod["status"]:
            running = {"state": {"running": {"startedAt": to_timestamp(0)}}, "ready": True, "restartCount": 0}
            status = {
                **pod["status"],
                "phase": "Running",
                "podIP": address,
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "engine", **running}],
            }
            await self._cluster.patch_status(POD, meta["namespace"], meta["name"], status)
        uid = meta["ownerReferences"][0]["uid"]
        keys = Installation("test").service(meta["namespace"], meta["labels"]["roundhouse.dev/service"])
        lease = Lease(replica=meta["name"], replica_uid=uid, pod_uid=meta["uid"], epoch=1, source=1, state="ready")
        if self._link.healthy:
            with suppress(RedisUnavailable):
                await LeaseStore(self._link, keys).write(
                    msgspec.structs.replace(lease, **self.lease_changes), announce=False
                )


class Rig:
    def __init__(self, valkey: Valkey, link: RedisLink, observer: RedisLink) -> None:
        self.valkey = valkey
        self.link = link
        self.agents = FakeAgents()
        self.cluster = MemoryCluster(SchemaValidator(crds().values(), COMPLAINTS), bookmark_s=0.2)
        self.kubelet = Kubelet(self.cluster, observer)
        self.core: OperatorCore
        self.catalogue = CatalogueStore(observer, Installation("test"))
        self.observer = observer

    @asynccontextmanager
    async def operator(self, settings: Settings = SETTINGS) -> AsyncIterator[OperatorCore]:
        """One operator's life."""
        self.core = OperatorCore(self.cluster, self.link, settings, agents=self.agents)
        task = asyncio.create_task(self.core.run())
        try:
            yield self.core
            assert not task.done(), task
        finally:
            await end_all([task])

    async def apply(self, obj: Obj) -> Obj:
        return await self.cluster.apply(INFERENCE_SERVICE, obj, manager="kubectl", force=True)

    async def entry(self, key: str) -> ServiceEntry | None:
        stored = await self.catalogue.read()
        return stored.services.get(key) if stored else None

    async def members(self, key: str = "default/llama") -> int:
        entry = await self.entry(key)
        return len(entry.members) if entry else -1

    async def has_members(self, count: int, key: str = "default/llama") -> bool:
        return await self.members(key) == count

    async def has_pods(self, count: int) -> bool:
        return len(await self.objects(POD)) == count

    async def condition_is(self, kind: str, wanted: tuple[str, str], name: str = "llama") -> bool:
        return await self.condition(kind, name) == wanted

    async def condition(self, kind: str, name: str = "llama") -> tuple[str, str]:
        service = await self.cluster.get(INFERENCE_SERVICE, "default", name)
        conditions = (service.get("status") or {}).get("conditions", [])
        found = next((item for item in conditions if item["type"] == kind), {"status": "", "reason": ""})
        return found["status"], found["reason"]

    async def ready(self, name: str = "llama") -> bool:
        return (await self.condition("Ready", name)) == ("True", "Serving")

    async def objects(self, kind: Kind) -> list[Obj]:
        found, _ = await self.cluster.list(kind)
        return found

    async def redis_keys(self) -> list[str]:
        found: list[Any] = await self.observer.client.keys("*")
        return sorted(key.decode() for key in found)

    async def gone(self, name: str = "llama") -> bool:
        try:
            await self.cluster.get(INFERENCE_SERVICE, "default", name)
        except NotFound:
            return not await self.objects(ENGINE_REPLICA) and not await self.objects(POD)
        return False


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    valkey = Valkey()
    try:
        async with RedisLink(config(valkey.url)) as link, RedisLink(config(valkey.url)) as observer:
            assert await link.wait_healthy(10)
            assert await observer.wait_healthy(10)
            rig = Rig(valkey, link, observer)
            async with rig.cluster:
                node = {
                    "metadata": {"name": "n"},
                    "status": {"allocatable": {"cpu": "99", "memory": "99Gi", "pods": "99"}},
                }
                await rig.cluster.create(NODE, node)
                kubelet = asyncio.create_task(rig.kubelet.run())
                try:
                    yield rig
                    assert not kubelet.done(), kubelet
                finally:
                    await end_all([kubelet])
    finally:
        valkey.close()


def settings(**changes: Any) -> Settings:
    return replace(SETTINGS, **changes)
