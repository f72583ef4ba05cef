"""What many services cost the operator: a thousand of one replica each on a real control plane.

The control plane is that of local/kubernetes without nodes; pods and leases are played (`fake_node`). First, on the
quiet cluster, single services: from the create to the pod that the API server reports. Then all at once: until every
status says Ready. Then nothing: what the operator still writes. Writes are counted by the API server.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version

import uvloop
from roundhouse_kv.redis_config import RedisConfig
from roundhouse_kv.redis_link import RedisLink
from roundhouse_operator.cluster import INFERENCE_SERVICE
from roundhouse_operator.kubernetes_cluster import KubernetesCluster, connect

from benchmarks.harness import BenchmarkError, Child, print_result, quick
from benchmarks.live_state import valkey
from benchmarks.operator.control_plane import ControlPlane, control_plane, operator, peak_rss_mb
from benchmarks.operator.fake_node import NAMESPACE, FakeNode, service

SERVICES, SINGLES, IDLE_S = 1000, 100, 600.0
QUICK_SERVICES, QUICK_SINGLES, QUICK_IDLE_S = 200, 20, 20.0
CREATES_AT_ONCE = 16
SETTLE_S = 5.0
PATIENCE_S = 300.0
GOALS: Mapping[str, float] = {
    "all_right_seconds": 60,
    "peak_rss_mb": 250,
    "writes_per_service": 8,
    "idle_writes": 0,
    "apply_to_pod_p50_s": 0.5,
    "apply_to_pod_p99_s": 2,
}


def main() -> int:
    try:
        with valkey() as redis_url, control_plane() as plane, operator(plane, redis_url) as process:
            figures = uvloop.run(_measure(plane, process, redis_url))
    except BenchmarkError as error:
        print(f"bench-operator: {error}", file=sys.stderr)
        return 1
    for name, bound in GOALS.items():
        print(f"{'met   ' if figures[name] <= bound else 'MISSED'} {name}: {figures[name]:g}, goal at most {bound:g}")
    versions = {"kopf": version("kopf"), "kubernetes": version("kubernetes")}
    print_result("operator", versions, {name: {"roundhouse": value} for name, value in figures.items()})
    return 0


async def _measure(plane: ControlPlane, process: Child, redis_url: str) -> dict[str, float]:
    services, singles = (QUICK_SERVICES, QUICK_SINGLES) if quick() else (SERVICES, SINGLES)
    async with connect(30.0, kubeconfig=str(plane.kubeconfig)) as cluster, RedisLink(RedisConfig(redis_url)) as link:
        node = FakeNode(cluster, link)
        async with asyncio.TaskGroup() as group:  # a node that fails ends everything
            playing = group.create_task(node.run())
            await asyncio.sleep(1.0)
            # It stays: what its namespace gets once (a Secret, a user of Redis) is no other service's.
            await cluster.create(INFERENCE_SERVICE, service("first"))
            await _until(node, lambda: "first" in node.right)
            delays = sorted([await _single(cluster, node, f"single-{number}") for number in range(singles)])
            await asyncio.sleep(SETTLE_S)
            figures = {
                **await _together(cluster, node, plane, process, services),
                **await _idle(plane, process),
                "apply_to_pod_p50_s": round(statistics.median(delays), 4),
                "apply_to_pod_p99_s": round(delays[int(0.99 * (len(delays) - 1) + 0.5)], 4),
                "services": float(services),
            }
            playing.cancel()
        return figures


async def _single(cluster: KubernetesCluster, node: FakeNode, name: str) -> float:
    begun = time.monotonic()
    await cluster.create(INFERENCE_SERVICE, service(name))
    await _until(node, lambda: name in node.right)
    await cluster.delete(INFERENCE_SERVICE, NAMESPACE, name)
    return node.created[name] - begun


async def _together(
    cluster: KubernetesCluster, node: FakeNode, plane: ControlPlane, process: Child, count: int
) -> dict[str, float]:
    names = {f"many-{number:04}" for number in range(count)}
    before, cpu = plane.writes(), process.cpu_seconds()
    room = asyncio.Semaphore(CREATES_AT_ONCE)

    async def create(name: str) -> None:
        async with room:
            await cluster.create(INFERENCE_SERVICE, service(name))

    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(create(name))
    created = time.monotonic() - begun
    await _until(node, lambda: names <= node.right)
    took = time.monotonic() - begun
    await asyncio.sleep(SETTLE_S)
    after = plane.writes()
    for what in sorted(after):
        print(f"{(after[what] - before.get(what, 0)) / count:6.3f} a service: {what}")
    print(f"created in {created:.1f} s, right after {took:.1f} s")
    return {
        "all_right_seconds": round(took, 2),
        "peak_rss_mb": round(peak_rss_mb(process.pid), 1),
        "cpu_seconds": round(process.cpu_seconds() - cpu, 2),
        "writes_per_service": round((sum(after.values()) - sum(before.values())) / count, 3),
    }


async def _idle(plane: ControlPlane, process: Child) -> dict[str, float]:
    """Events count here: in steady state there are none."""
    window = QUICK_IDLE_S if quick() else IDLE_S
    before, cpu = sum(plane.writes().values()) + plane.events(), process.cpu_seconds()
    await asyncio.sleep(window)
    process.fail_if_ended()
    after = sum(plane.writes().values()) + plane.events()
    print(f"idle CPU {1000 * (process.cpu_seconds() - cpu) / window:.1f} ms a second")
    return {"idle_writes": after - before, "idle_window_s": window}


async def _until(node: FakeNode, wanted: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not wanted():
                await node.changed.wait()
    except TimeoutError:
        raise BenchmarkError(f"not within {PATIENCE_S:g} s; {len(node.right)} services are ready") from None


if __name__ == "__main__":
    sys.exit(main())
