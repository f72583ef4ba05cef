"""One fake node: registers itself, runs the pods that are bound to it, frees what they leave.

A worker per pod uid; the kubelet follows its pods by list and watch and lists again when the watch has expired. It is
one task of the supervisor; cancelling it leaves the processes to the warden.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from roundhouse_operator.cluster import POD, ClusterError, Expired, Obj, WatchEvent

from roundhouse_local.api import NODE, MemoryCluster
from roundhouse_local.kubelet.actions import Actions
from roundhouse_local.kubelet.addresses import AddressPool
from roundhouse_local.kubelet.backoff import BackoffRule
from roundhouse_local.kubelet.gpus import GpuShelf
from roundhouse_local.kubelet.ignored import ignored_fields
from roundhouse_local.kubelet.images import ROUNDHOUSE_IMAGES, Image, ImageTable
from roundhouse_local.kubelet.logs import shorten
from roundhouse_local.kubelet.pod import NodeHost, PodWorker
from roundhouse_local.processes import ProcessHost

logger = logging.getLogger(__name__)

FORCED_GRACE_S = 1.0
"""For pods that were taken out of the API without waiting for us."""


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """``home`` takes pod folders, logs and scripts; keep it short, Unix socket paths end at 107 bytes.

    ``env`` is what every container starts from. ``log_limit`` in bytes a container's log.
    """

    home: Path
    env: Mapping[str, str]
    node: str = "local"
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=lambda: dict(ROUNDHOUSE_IMAGES))
    backoff: BackoffRule = field(default_factory=lambda: BackoffRule(initial_s=1.0, limit_s=60.0, reset_s=60.0))
    log_limit: int = 16 << 20
    retry_s: float = 1.0


class Kubelet:
    """``async with Kubelet(…)`` registers the node; `run` is its work."""

    def __init__(
        self,
        cluster: MemoryCluster,
        processes: ProcessHost,
        settings: KubeletSettings,
        *,
        addresses: AddressPool | None = None,
        notice: Callable[[str], None] = logger.warning,
    ) -> None:
        self._cluster, self._settings, self._notice = cluster, settings, notice
        self._http: aiohttp.ClientSession | None = None
        self._gpus = GpuShelf(settings.gpus)
        self._workers: dict[str, tuple[PodWorker, asyncio.Task[None]]] = {}
        self._told: set[str] = set()
        images = ImageTable(settings.images)
        images.write_scripts(self._folder("bin"))
        self._host = NodeHost(
            cluster=cluster,
            processes=processes,
            actions=Actions(self._session, processes),
            images=images,
            addresses=addresses or AddressPool(),
            backoff=settings.backoff,
            node=settings.node,
            pods=self._folder("pods"),
            logs=self._folder("logs"),
            env=dict(settings.env),
            gpu_env=self._gpus.environment,
            retry_s=settings.retry_s,
        )

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        quantities = {"cpu": "1000", "memory": "1000Ti", "pods": "1000", "nvidia.com/gpu": str(self._settings.gpus)}
        status = {
            "capacity": quantities,
            "allocatable": quantities,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        labels = {"kubernetes.io/hostname": self._settings.node, **self._settings.labels}
        node = {"metadata": {"name": self._settings.node, "labels": labels}, "status": status}
        await self._cluster.create(NODE, node)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for _, task in self._workers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._cluster.delete(NODE, "", self._settings.node)
        if self._http is not None:
            await self._http.close()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tidy_logs())
            while True:
                pods, version = await self._cluster.list(POD)
                self._take_list([pod for pod in pods if self._mine(pod)])
                try:
                    async for event in self._cluster.watch(POD, None, version):
                        self._take_event(event)
                except Expired:
                    logger.info("watch_expired")

    def _session(self) -> aiohttp.ClientSession:
        assert self._http is not None
        return self._http

    def _folder(self, name: str) -> Path:
        folder = self._settings.home / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    def _mine(self, pod: Obj) -> bool:
        return bool(pod["spec"].get("nodeName") == self._settings.node)

    def _take_list(self, pods: list[Obj]) -> None:
        here = {pod["metadata"]["uid"] for pod in pods}
        for uid, (worker, _) in self._workers.items():
            if uid not in here:
                worker.terminate(FORCED_GRACE_S)
        for pod in pods:
            self._take(pod)

    def _take_event(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            known = self._workers.get(event.object["metadata"]["uid"])
            if known is not None:
                known[0].terminate(FORCED_GRACE_S)
        elif event.type != "BOOKMARK" and self._mine(event.object):
            self._take(event.object)

    def _take(self, pod: Obj) -> None:
        uid = pod["metadata"]["uid"]
        known = self._workers.get(uid)
        if known is None:
            if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                return
            self._say_ignored(pod)
            self._gpus.take(pod)
            worker = PodWorker(pod, self._host)
            task = asyncio.create_task(self._run(worker, pod), name=f"pod {pod['metadata']['name']}")
            task.add_done_callback(lambda _: self._ended(uid))
            self._workers[uid] = worker, task
            known = self._workers[uid]
        known[0].update(pod)

    async def _run(self, worker: PodWorker, pod: Obj) -> None:
        """A pod whose worker breaks has failed, so that its owner makes another."""
        try:
            await worker.run()
        except Exception as error:
            logger.exception("pod_worker_failed", extra={"pod": pod["metadata"]["name"]})
            metadata = pod["metadata"]
            status = {"phase": "Failed", "reason": "KubeletError", "message": f"{type(error).__name__}: {error}"}
            with suppress(ClusterError):
                await self._cluster.patch_status(
                    POD, metadata["namespace"], metadata["name"], status, uid=metadata["uid"]
                )

    def _ended(self, uid: str) -> None:
        self._workers.pop(uid, None)
        self._gpus.give_back(uid)

    def _say_ignored(self, pod: Obj) -> None:
        new = sorted(ignored_fields(pod["spec"]) - self._told)
        if new:
            self._told |= set(new)
            self._notice(f"The local run ignores these fields of a pod: {', '.join(new)}")

    async def _tidy_logs(self) -> None:
        while True:
            await asyncio.sleep(5)
            for path in self._host.logs.glob("*/*/*.log"):
                if shorten(path, self._settings.log_limit):
                    logger.info("log_shortened", extra={"path": str(path)})
