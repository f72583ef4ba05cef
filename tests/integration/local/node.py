"""A node with a kubelet for tests, and how tests look at it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundhouse_local.api import MemoryCluster
from roundhouse_local.kubelet import BackoffRule, Image, Kubelet, KubeletSettings, base_environment
from roundhouse_local.processes import ProcessHost
from roundhouse_operator.cluster import POD, NotFound, Obj

PROGRAM = Path(__file__).with_name("program.py")
DEADLINE_S = 20.0


@dataclass
class Node:
    cluster: MemoryCluster
    home: Path

    @property
    def events_file(self) -> Path:
        return self.home / "events"

    def events(self) -> list[str]:
        """What containers told, pids left out."""
        lines = self.events_file.read_text().splitlines() if self.events_file.exists() else []
        return [line.rsplit(" ", 1)[0] if " start " in line or " child " in line else line for line in lines]

    def pids(self, event: str = "start") -> list[int]:
        lines = self.events_file.read_text().splitlines() if self.events_file.exists() else []
        return [int(line.rsplit(" ", 1)[1]) for line in lines if f" {event} " in line]

    async def pod(self, name: str = "p") -> Obj:
        return await self.cluster.get(POD, "default", name)

    async def status(self, container: str, name: str = "p") -> Obj:
        """Status of one container; empty while there is none."""
        status = (await self.pod(name)).get("status", {})
        found = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
        return next((item for item in found if item["name"] == container), {})

    async def condition(self, kind: str, name: str = "p") -> str:
        conditions = (await self.pod(name)).get("status", {}).get("conditions", [])
        return next((c["status"] for c in conditions if c["type"] == kind), "")

    async def run(self, name: str = "p", **spec: Any) -> Obj:
        return await self.cluster.create(POD, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

    async def gone(self, name: str = "p") -> bool:
        try:
            await self.pod(name)
        except NotFound:
            return True
        return False


def container(name: str, *args: str, **fields: Any) -> Obj:
    """A container that runs the test program; it tells its events into the node's file."""
    env = [
        {"name": "EVENTS", "value": "/events/events"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        *fields.pop("env", []),
    ]
    mounts = [{"name": "events", "mountPath": "/events"}, *fields.pop("volumeMounts", [])]
    return {"name": name, "image": "test", "args": [name, *args], "env": env, "volumeMounts": mounts, **fields}


def spec(node: Node, *containers: Obj, init: list[Obj] | None = None, **fields: Any) -> Obj:
    """Of a pod whose containers can tell their events."""
    volumes = [{"name": "events", "hostPath": {"path": str(node.home)}}, *fields.pop("volumes", [])]
    return {"containers": list(containers), "initContainers": init or [], "volumes": volumes, **fields}


def http(path: str, port: int = 8000, **rule: Any) -> Obj:
    """A probe that decides quickly."""
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": 0.05, "failureThreshold": 1, **rule}


async def until(look: Callable[[], Any], what: str = "") -> Any:
    """Poll until ``look`` (perhaps async) gives something true."""
    loop = asyncio.get_running_loop()
    end = loop.time() + DEADLINE_S
    while True:
        found = look()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        if loop.time() > end:
            raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what or look}")
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    """A zombie is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@asynccontextmanager
async def running_node(home: Path, **settings: Any) -> AsyncIterator[Node]:
    async with ProcessHost() as processes, MemoryCluster() as cluster:
        env = base_environment({"PATH": "/usr/bin:/bin"}, str(home / "bin"))
        kubelet = Kubelet(
            cluster,
            processes,
            KubeletSettings(
                home=home,
                env=env,
                images={"test": Image((sys.executable, "-I", "-S", str(PROGRAM)))},
                backoff=BackoffRule(initial_s=0.1, limit_s=0.4),
                retry_s=0.05,
                **settings,
            ),
        )
        async with kubelet:
            running = asyncio.create_task(kubelet.run())
            try:
                yield Node(cluster, home)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
