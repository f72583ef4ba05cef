import asyncio

import pytest
from roundhouse_local.api import MemoryCluster
from roundhouse_operator.cluster import CONFIG_MAP, ENGINE_REPLICA, INFERENCE_SERVICE, POD, NotFound

from tests.unit.roundhouse_local.objects import obj, pod


async def test_dependents_of_dependents_go_with_the_owner(cluster: MemoryCluster) -> None:
    service = await cluster.create(INFERENCE_SERVICE, obj("a"))
    replica = await cluster.create(ENGINE_REPLICA, obj("a-1", owners=[service]))
    await cluster.create(CONFIG_MAP, obj("a-1-map", owners=[replica]))
    await cluster.delete(INFERENCE_SERVICE, "default", "a")
    await cluster.settle()
    for kind in (ENGINE_REPLICA, CONFIG_MAP):
        assert (await cluster.list(kind))[0] == []


async def test_running_pod_of_a_deleted_owner_terminates_gracefully(cluster: MemoryCluster) -> None:
    replica = await cluster.create(ENGINE_REPLICA, obj("a"))
    await cluster.create(POD, pod("a", owners=[replica], spec={"nodeName": "n"}))
    await cluster.delete(ENGINE_REPLICA, "default", "a")
    await cluster.settle()
    assert "deletionTimestamp" in (await cluster.get(POD, "default", "a"))["metadata"]


async def test_object_created_after_its_owner_is_gone_goes_too(cluster: MemoryCluster) -> None:
    service = await cluster.create(INFERENCE_SERVICE, obj("a"))
    await cluster.delete(INFERENCE_SERVICE, "default", "a")
    await cluster.create(ENGINE_REPLICA, obj("late", owners=[service]))
    await cluster.settle()
    with pytest.raises(NotFound):
        await cluster.get(ENGINE_REPLICA, "default", "late")


async def test_owner_of_the_same_name_made_anew_is_another_owner(cluster: MemoryCluster) -> None:
    service = await cluster.create(INFERENCE_SERVICE, obj("a"))
    await cluster.create(ENGINE_REPLICA, obj("r", owners=[service]))
    await cluster.delete(INFERENCE_SERVICE, "default", "a")
    await cluster.create(INFERENCE_SERVICE, obj("a"))
    await cluster.settle()
    assert (await cluster.list(ENGINE_REPLICA))[0] == []


async def test_object_lives_while_one_of_its_owners_does(cluster: MemoryCluster) -> None:
    first = await cluster.create(INFERENCE_SERVICE, obj("a"))
    second = await cluster.create(INFERENCE_SERVICE, obj("b"))
    await cluster.create(CONFIG_MAP, obj("map", owners=[first, second]))
    await cluster.delete(INFERENCE_SERVICE, "default", "a")
    await cluster.settle()
    assert await cluster.get(CONFIG_MAP, "default", "map")
    await cluster.delete(INFERENCE_SERVICE, "default", "b")
    await cluster.settle()
    assert (await cluster.list(CONFIG_MAP))[0] == []


async def test_owner_in_another_namespace_does_not_count(cluster: MemoryCluster) -> None:
    service = await cluster.create(INFERENCE_SERVICE, obj("a", "other"))
    await cluster.create(CONFIG_MAP, obj("map", owners=[service]))
    await cluster.settle()
    assert (await cluster.list(CONFIG_MAP))[0] == []


async def test_running_cluster_collects_by_itself(cluster: MemoryCluster) -> None:
    async with cluster:
        service = await cluster.create(INFERENCE_SERVICE, obj("a"))
        await cluster.create(CONFIG_MAP, obj("map", owners=[service]))
        await cluster.delete(INFERENCE_SERVICE, "default", "a")
        async with asyncio.timeout(5):
            async for event in cluster.watch(CONFIG_MAP, None, service["metadata"]["resourceVersion"]):
                if event.type == "DELETED":
                    break
