from collections.abc import Callable
from typing import Any

import pytest
from roundhouse_local.api import MemoryCluster
from roundhouse_operator.cluster import POD, Obj

from tests.unit.roundhouse_local.objects import pod

AddNode = Callable[..., Any]


async def node_of(cluster: MemoryCluster, name: str) -> str | None:
    node: str | None = (await cluster.get(POD, "default", name))["spec"].get("nodeName")
    return node


async def scheduled(cluster: MemoryCluster, name: str) -> Obj:
    conditions = (await cluster.get(POD, "default", name))["status"]["conditions"]
    return next(c for c in conditions if c["type"] == "PodScheduled")


async def test_pod_is_bound_to_a_node_with_enough_gpus(cluster: MemoryCluster, add_node: AddNode) -> None:
    await add_node("small", 1)
    await add_node("large", 4)
    await cluster.create(POD, pod("a", gpus=2))
    await cluster.settle()
    assert await node_of(cluster, "a") == "large"
    assert (await scheduled(cluster, "a"))["status"] == "True"


async def test_pods_fill_nodes_and_the_rest_waits(cluster: MemoryCluster, add_node: AddNode) -> None:
    await add_node("n1", 1)
    await add_node("n2", 1)
    for name in "abc":
        await cluster.create(POD, pod(name, gpus=1))
    await cluster.settle()
    assert {await node_of(cluster, name) for name in "abc"} == {"n1", "n2", None}
    condition = await scheduled(cluster, "c")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert condition["message"] == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


async def test_waiting_pod_is_bound_when_a_gpu_is_free(cluster: MemoryCluster, add_node: AddNode) -> None:
    await add_node("n", 1)
    await cluster.create(POD, pod("a", gpus=1))
    await cluster.create(POD, pod("b", gpus=1))
    await cluster.settle()
    await cluster.delete(POD, "default", "a", grace_seconds=0)
    await cluster.settle()
    assert await node_of(cluster, "b") == "n"


async def test_terminating_pod_still_holds_its_gpu(cluster: MemoryCluster, add_node: AddNode) -> None:
    await add_node("n", 1)
    await cluster.create(POD, pod("a", gpus=1))
    await cluster.settle()
    await cluster.delete(POD, "default", "a")
    await cluster.create(POD, pod("b", gpus=1))
    await cluster.settle()
    assert await node_of(cluster, "b") is None


async def test_finished_pod_holds_no_gpu(cluster: MemoryCluster, add_node: AddNode) -> None:
    await add_node("n", 1)
    await cluster.create(POD, pod("a", gpus=1))
    await cluster.settle()
    await cluster.patch_status(POD, "default", "a", {"phase": "Succeeded"})
    await cluster.create(POD, pod("b", gpus=1))
    await cluster.settle()
    assert await node_of(cluster, "b") == "n"


async def test_node_selector_is_obeyed(cluster: MemoryCluster, add_node: AddNode) -> None:
    await add_node("n1", 4)
    await cluster.create(POD, pod("a", gpus=1, spec={"nodeSelector": {"gpu": "h100"}}))
    await cluster.settle()
    assert "didn't match Pod's node affinity/selector" in (await scheduled(cluster, "a"))["message"]
    await add_node("n2", 1, labels={"gpu": "h100"})
    await cluster.settle()
    assert await node_of(cluster, "a") == "n2"


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        ({"key": "gpu", "operator": "In", "values": ["h100", "h200"]}, True),
        ({"key": "gpu", "operator": "In", "values": ["a100"]}, False),
        ({"key": "gpu", "operator": "NotIn", "values": ["a100"]}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "DoesNotExist"}, False),
        ({"key": "gpu", "operator": "Gt", "values": ["1"]}, False),
    ],
)
async def test_required_node_affinity_is_obeyed(
    cluster: MemoryCluster, add_node: AddNode, rule: Obj, fits: bool
) -> None:
    await add_node("n", 1, labels={"gpu": "h100"})
    required = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    await cluster.create(POD, pod("a", spec={"affinity": affinity}))
    await cluster.settle()
    assert (await node_of(cluster, "a") == "n") is fits


async def test_cluster_without_nodes_says_so(cluster: MemoryCluster) -> None:
    await cluster.create(POD, pod("a"))
    await cluster.settle()
    assert (await scheduled(cluster, "a"))["message"] == "no nodes available to schedule pods"


async def test_unchanged_verdict_is_not_written_again(cluster: MemoryCluster, add_node: AddNode) -> None:
    await cluster.create(POD, pod("a", gpus=1))
    await cluster.settle()
    before = await cluster.get(POD, "default", "a")
    await cluster.create(POD, pod("b", gpus=1))
    await cluster.settle()
    assert await cluster.get(POD, "default", "a") == before


@pytest.mark.parametrize(("init", "main", "fits"), [("3", "1", True), ("4", "1", False), ("1", "4", False)])
async def test_init_containers_count_by_their_largest(
    cluster: MemoryCluster, add_node: AddNode, init: str, main: str, fits: bool
) -> None:
    """The sidecar's one GPU is held beside either; the node has four."""
    await add_node("n", 4)
    needs = lambda n: {"resources": {"limits": {"nvidia.com/gpu": n}}}  # noqa: E731
    spec = {
        "initContainers": [
            {"name": "side", "image": "x", "restartPolicy": "Always", **needs("1")},
            {"name": "init", "image": "x", **needs(init)},
        ],
        "containers": [{"name": "main", "image": "x", **needs(main)}],
    }
    await cluster.create(POD, pod("a", spec=spec))
    await cluster.settle()
    assert (await node_of(cluster, "a") == "n") is fits


async def test_unreadable_quantity_is_reported_in_the_condition(cluster: MemoryCluster, add_node: AddNode) -> None:
    await add_node("n", 4)
    await cluster.create(POD, pod("a", gpus="many"))  # type: ignore[arg-type]
    await cluster.settle()
    assert "'many' is not a quantity" in (await scheduled(cluster, "a"))["message"]
