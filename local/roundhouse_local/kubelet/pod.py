"""The life of one pod on this node: address and volumes, init containers in order, main containers, the end.

Termination follows the kubelet: the hooks of all containers run together, SIGTERM reaches main containers after their
own hook, sidecars get theirs when every main container is gone, last started first. What is left of the grace counts
for all of it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundhouse_operator.cluster import POD, Conflict, NotFound, Obj

from roundhouse_local.api import MemoryCluster
from roundhouse_local.errors import MissingSource, StartError
from roundhouse_local.kubelet.actions import Actions, Place
from roundhouse_local.kubelet.addresses import AddressPool
from roundhouse_local.kubelet.backoff import Backoff, BackoffRule
from roundhouse_local.kubelet.container import Command, Container, ContainerHost
from roundhouse_local.kubelet.environment import PodFacts, container_environment, expand
from roundhouse_local.kubelet.images import ImageTable
from roundhouse_local.kubelet.mounts import Mount, mounts_of, rewrite, rewrite_all
from roundhouse_local.kubelet.pod_status import PodView, pod_status
from roundhouse_local.kubelet.records import ContainerRecord, Grace, Waiting, role_of
from roundhouse_local.kubelet.sources import load_sources
from roundhouse_local.kubelet.volumes import make_volumes, remove_volumes
from roundhouse_local.processes import ProcessHost

DEFAULT_GRACE_S = 30


@dataclass(frozen=True, slots=True)
class NodeHost:
    """What all pods of a node share. ``env`` is the part of a container's environment that an image would bring."""

    cluster: MemoryCluster
    processes: ProcessHost
    actions: Actions
    images: ImageTable
    addresses: AddressPool
    backoff: BackoffRule
    node: str
    pods: Path
    logs: Path
    env: dict[str, str]
    gpu_env: Callable[[Obj], dict[str, str]]
    retry_s: float = 1.0


class PodWorker:
    """``run`` is awaited by the kubelet; `update` and `terminate` are called while it runs."""

    def __init__(self, pod: Obj, host: NodeHost) -> None:
        self._pod, self._host = pod, host
        self._spec: Obj = pod["spec"]
        self._folder = host.pods / pod["metadata"]["uid"]
        self._volumes: dict[str, Path] = {}
        self._address = ""
        self._prepared = False
        self._over = False
        self._begun = time.time()
        self._ending = asyncio.Event()
        self._grace: Grace | None = None
        self._grace_s = 0.0
        self._dirty = asyncio.Event()
        self._init = [self._container(spec, init=True) for spec in self._spec.get("initContainers") or ()]
        self._main = [self._container(spec, init=False) for spec in self._spec["containers"]]
        self._lives: dict[str, asyncio.Task[None]] = {}

    def update(self, pod: Obj) -> None:
        """A newer version of the same pod."""
        self._pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self.terminate(pod["metadata"].get("deletionGracePeriodSeconds", DEFAULT_GRACE_S))

    def terminate(self, grace_s: float) -> None:
        """End the pod within ``grace_s`` from now; a second call can only shorten that."""
        if not self._ending.is_set():
            self._grace_s = grace_s
            self._ending.set()
        elif grace_s < self._grace_s:
            self._grace_s = grace_s
            if self._grace is not None:
                self._grace.shorten(grace_s)

    async def run(self) -> None:
        """Until the pod is gone from the API; raises what broke inside."""
        publishing = asyncio.create_task(self._publish_changes())
        living = asyncio.create_task(self._live())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({living, ending, publishing}, return_when=asyncio.FIRST_COMPLETED)
            await _stop_task(living)
            self._grace = Grace(self._grace_s if self._ending.is_set() else self._own_grace_s())
            await self._end_containers(self._grace)
            self._over = True
            await self._publish()
            await ending
            await self._delete()
        finally:
            tasks: list[asyncio.Task[Any]] = [publishing, living, ending, *self._lives.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._host.addresses.release(self._address)
            remove_volumes(self._folder)

    async def _live(self) -> None:
        """Returns when the pod is over by itself: everything done, or an init container failed for good."""
        await self._prepare()
        for container in self._init:
            self._start(container)
            over = asyncio.create_task(container.ended.wait())
            started = asyncio.create_task(container.started.wait())
            waited = {over, started} if container.record.role == "sidecar" else {over}
            try:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            finally:
                over.cancel()
                started.cancel()
            if container.record.role == "init" and not container.record.done:
                return
        for container in self._main:
            self._start(container)
        for container in self._main:
            await container.ended.wait()

    async def _prepare(self) -> None:
        """Take an address and make the volumes; wait for what is not there yet, and say what that is.

        A real kubelet tells of a missing volume in events only; here it is the containers' reason for waiting.
        """
        while not self._prepared:
            try:
                self._address = self._address or self._host.addresses.take(self._ports())
                sources = await load_sources(self._host.cluster, self._pod)
                self._volumes = make_volumes(self._pod, self._folder / "v", sources)
                (self._folder / "words").mkdir(parents=True, exist_ok=True)
                self._prepared = True
            except (MissingSource, StartError, OSError) as error:
                self._say_waiting("CreateContainerConfigError", str(error))
                await asyncio.sleep(self._host.retry_s)
        self._say_waiting("PodInitializing", "")

    def _start(self, container: Container) -> None:
        self._lives[container.record.name] = asyncio.create_task(container.run())

    async def _end_containers(self, grace: Grace) -> None:
        everyone = [container for container in (*self._init, *self._main) if container.record.name in self._lives]
        for container in everyone:
            container.retire()
        mains = [container for container in everyone if container.record.role != "sidecar"]
        sidecars = [container for container in everyone if container.record.role == "sidecar"]
        async with asyncio.TaskGroup() as group:
            for container in mains:
                group.create_task(container.stop(grace))
            for place, container in enumerate(sidecars):
                before = [*mains, *sidecars[place + 1 :]]
                group.create_task(container.stop(grace, turn=_after(before)))
        for container in everyone:
            await self._lives[container.record.name]

    # What containers need.

    def _container(self, spec: Obj, *, init: bool) -> Container:
        metadata = self._pod["metadata"]
        host = ContainerHost(
            processes=self._host.processes,
            actions=self._host.actions,
            command=self._command,
            changed=self._dirty.set,
            logs=self._host.logs,
            last_words=self._folder / "words",
            namespace=metadata["namespace"],
            pod=metadata["name"],
            restart_policy=self._restart_policy(),
            grace_s=self._own_grace_s(),
            backoff=lambda: Backoff(self._host.backoff),
            retry_s=self._host.retry_s,
        )
        return Container(ContainerRecord(spec, role_of(spec, init=init)), host)

    async def _command(self, record: ContainerRecord) -> Command:
        """Raises `ImageError` or `MissingSource`."""
        spec = record.spec
        image = self._host.images.resolve(spec["image"])
        sources = await load_sources(self._host.cluster, self._pod)
        last_words = Mount(
            spec.get("terminationMessagePath", "/dev/termination-log"), str(self._folder / "words" / record.name)
        )
        mounts = (last_words, *mounts_of(spec, self._volumes))
        facts = PodFacts(self._address, "127.0.0.1", self._host.node)
        own = container_environment(spec, self._pod, facts, sources)
        env = (
            image.environment(self._host.env)
            | self._host.gpu_env(self._pod)
            | {k: rewrite(v, mounts) for k, v in own.items()}
        )
        env["HOSTNAME"] = self._pod["metadata"]["name"]
        # The image's own argv names programs of this machine: none lies in a mount, though paths may look alike.
        entry = () if spec.get("command") else image.argv
        words = [*(spec.get("command") or ()), *(spec.get("args") or ())]
        argv = (*entry, *rewrite_all((expand(word, own) for word in words), mounts))
        folder = Path(rewrite(spec["workingDir"], mounts)) if spec.get("workingDir") else self._folder
        ports = {port["name"]: port["containerPort"] for port in spec.get("ports") or () if port.get("name")}
        return Command(argv, Place(self._address, ports, env, folder, mounts))

    def _ports(self) -> list[int]:
        containers = [container.record.spec for container in (*self._init, *self._main)]
        return [port["containerPort"] for spec in containers for port in spec.get("ports") or ()]

    def _restart_policy(self) -> str:
        policy: str = self._spec.get("restartPolicy", "Always")
        return policy

    def _own_grace_s(self) -> float:
        grace: float = self._spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
        return grace

    # Status.

    def _say_waiting(self, reason: str, message: str) -> None:
        for container in (*self._init, *self._main):
            container.record.state = Waiting(reason, message)
        self._dirty.set()

    async def _publish_changes(self) -> None:
        self._dirty.set()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._publish()

    async def _publish(self) -> None:
        metadata = self._pod["metadata"]
        view = PodView(
            init=[container.record for container in self._init],
            main=[container.record for container in self._main],
            pod_ip=self._address,
            host_ip="127.0.0.1",
            started_at=self._begun,
            prepared=self._prepared,
            over=self._over,
        )
        try:
            now = await self._host.cluster.get(POD, metadata["namespace"], metadata["name"])
            status = pod_status(view, now.get("status") or {}, time.time())
            if status != now.get("status"):
                await self._host.cluster.patch_status(
                    POD, metadata["namespace"], metadata["name"], status, uid=metadata["uid"]
                )
        except (NotFound, Conflict):  # Deleted with grace 0 meanwhile; the end comes by another way.
            return

    async def _delete(self) -> None:
        metadata = self._pod["metadata"]
        await self._host.cluster.delete(
            POD, metadata["namespace"], metadata["name"], uid=metadata["uid"], grace_seconds=0
        )


def _after(containers: list[Container]) -> Callable[[], Awaitable[None]]:
    async def turn() -> None:
        for container in containers:
            await container.ended.wait()

    return turn


async def _stop_task(task: asyncio.Task[None]) -> None:
    """Cancel and wait; an error of its own is not swallowed."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
