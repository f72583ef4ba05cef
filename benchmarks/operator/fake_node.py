"""Plays the nodes and the agents: every pod is ready as soon as it is there, and its lease says so.

Nothing schedules these pods: they name a scheduler that does not exist, so that what is measured is the operator and
not the scheduler's own limit on requests.
"""

import asyncio
import itertools
import time
from collections.abc import Mapping

from roundhouse_kv.lease_store import LeaseStore
from roundhouse_kv.names import Installation
from roundhouse_kv.records import Lease
from roundhouse_kv.redis_link import RedisLink
from roundhouse_operator.cluster import INFERENCE_SERVICE, POD, Cluster, Kind, Obj
from roundhouse_operator.timestamps import to_timestamp

from benchmarks.operator.control_plane import INSTALLATION

SCHEDULER = "nobody"
LEASE_PERIOD_S = 2.0
NAMESPACE = "default"
OURS = {"app.kubernetes.io/managed-by": "roundhouse"}


def service(name: str) -> Obj:
    spec = {
        "engine": {"name": "sim"},
        "resources": {"gpus": 0},
        "replicas": 1,
        "podTemplate": {"spec": {"schedulerName": SCHEDULER}},
    }
    kind = INFERENCE_SERVICE
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


class FakeNode:
    """``run`` until cancelled. ``created``: when the pod of each service was reported; ``right``: services that say
    Ready."""

    def __init__(self, cluster: Cluster, link: RedisLink) -> None:
        self._cluster = cluster
        self._link = link
        self._leases: dict[str, tuple[LeaseStore, Lease]] = {}
        self._addresses = itertools.count(1)
        self._group = asyncio.TaskGroup()
        self.created: dict[str, float] = {}
        self.right: set[str] = set()
        self.changed = asyncio.Event()

    async def run(self) -> None:
        async with self._group:
            self._group.create_task(self._watch(POD, OURS))
            self._group.create_task(self._watch(INFERENCE_SERVICE, None))
            self._group.create_task(self._renew())

    async def _watch(self, kind: Kind, labels: Mapping[str, str] | None) -> None:
        _, version = await self._cluster.list(kind, NAMESPACE, labels)
        async for event in self._cluster.watch(kind, NAMESPACE, version, labels):
            if event.type == "BOOKMARK":
                continue
            if kind == POD:
                self._pod(event.type, event.object)
            else:
                self._service(event.type, event.object)
            self.changed.set()
            self.changed = asyncio.Event()

    def _pod(self, what: str, pod: Obj) -> None:
        meta = pod["metadata"]
        name = meta["labels"]["roundhouse.dev/service"]
        if what == "DELETED":
            self._leases.pop(meta["uid"], None)
        elif what == "ADDED":
            self.created[name] = time.monotonic()
            self._group.create_task(self._serve(name, pod))

    def _service(self, what: str, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        conditions = obj.get("status", {}).get("conditions", [])
        if what != "DELETED" and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            self.right.add(name)
        else:
            self.right.discard(name)

    async def _serve(self, name: str, pod: Obj) -> None:
        meta = pod["metadata"]
        store = LeaseStore(self._link, Installation(INSTALLATION).service(NAMESPACE, name))
        lease = Lease(
            replica=meta["name"],
            replica_uid=meta["ownerReferences"][0]["uid"],
            pod_uid=meta["uid"],
            epoch=1,
            source=1,
            state="ready",
            waiting=0,
            running=0,
            kv_used=0.0,
            kv_tokens=100_000,
            block_size=16,
        )
        self._leases[meta["uid"]] = (store, lease)
        await store.write(lease, announce=True)
        number = next(self._addresses)
        await self._cluster.patch_status(
            POD, NAMESPACE, meta["name"], _running(pod, f"10.9.{number >> 8}.{number & 255}"), uid=meta["uid"]
        )

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_PERIOD_S)
            for store, lease in list(self._leases.values()):
                await store.write(lease, announce=False)


def _running(pod: Obj, address: str) -> Obj:
    """What a kubelet reports once all containers run and are ready."""
    now = to_timestamp(time.time())

    def status(container: Obj) -> Obj:
        return {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }

    spec = pod["spec"]
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        **pod["status"],
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in conditions],
        "initContainerStatuses": [status(container) for container in spec["initContainers"]],
        "containerStatuses": [status(container) for container in spec["containers"]],
    }
