"""The client of a real API server, over HTTP against the in-memory API."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from roundhouse_local.api import MemoryCluster
from roundhouse_local.api.schema import SchemaValidator
from roundhouse_operator.api.crds import crds
from roundhouse_operator.api.parse import COMPLAINTS
from roundhouse_operator.cluster import (
    ENGINE_REPLICA,
    INFERENCE_SERVICE,
    POD,
    SECRET,
    AlreadyExists,
    ClusterError,
    Conflict,
    Expired,
    Invalid,
    NotFound,
)
from roundhouse_operator.kubernetes_cluster import KubernetesCluster, connect
from roundhouse_operator.names import OURS

from tests.integration.operator.api_server import ApiServer
from tests.unit.roundhouse_operator.world import service

pytestmark = pytest.mark.integration


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    memory = MemoryCluster(SchemaValidator(crds().values(), COMPLAINTS), bookmark_s=0.05)
    async with ApiServer(memory).running() as server:
        yield server


@pytest.fixture
async def cluster(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubernetesCluster]:
    server.write_kubeconfig(tmp_path / "config")
    async with connect(5.0, kubeconfig=str(tmp_path / "config")) as cluster:
        yield cluster


async def test_objects_come_and_go(cluster: KubernetesCluster) -> None:
    made = await cluster.create(INFERENCE_SERVICE, service())
    assert (await cluster.get(INFERENCE_SERVICE, "default", "llama"))["metadata"]["uid"] == made["metadata"]["uid"]
    await cluster.delete(INFERENCE_SERVICE, "default", "llama")
    await cluster.delete(INFERENCE_SERVICE, "default", "llama")
    with pytest.raises(NotFound, match="llama"):
        await cluster.get(INFERENCE_SERVICE, "default", "llama")


async def test_long_lists_come_in_pages_and_items_know_their_kind(cluster: KubernetesCluster) -> None:
    for i in range(5):
        labels = OURS if i % 2 else {}
        await cluster.create(SECRET, {"metadata": {"name": f"s{i}", "namespace": "default", "labels": labels}})
    found, version = await cluster.list(SECRET)
    assert [obj["metadata"]["name"] for obj in found] == [f"s{i}" for i in range(5)]
    assert {(obj["kind"], obj["apiVersion"]) for obj in found} == {("Secret", "v1")}
    assert version
    labelled, _ = await cluster.list(SECRET, "default", OURS)
    assert [obj["metadata"]["name"] for obj in labelled] == ["s1", "s3"]
    assert await cluster.list(SECRET, "elsewhere") == ([], version)


async def test_what_exists_is_not_made_again(cluster: KubernetesCluster) -> None:
    await cluster.create(INFERENCE_SERVICE, service())
    with pytest.raises(AlreadyExists, match="already exists"):
        await cluster.create(INFERENCE_SERVICE, service())


async def test_invalid_objects_are_refused_in_the_servers_words(cluster: KubernetesCluster) -> None:
    with pytest.raises(Invalid, match="spec.replicas") as refused:  # noqa: RUF043
        await cluster.create(INFERENCE_SERVICE, service(replicas=-1))
    assert refused.value.status == 422


async def test_apply_makes_and_changes(cluster: KubernetesCluster) -> None:
    await cluster.apply(INFERENCE_SERVICE, service(replicas=1))
    await cluster.apply(INFERENCE_SERVICE, service(replicas=2))
    assert (await cluster.get(INFERENCE_SERVICE, "default", "llama"))["spec"]["replicas"] == 2


async def test_apply_to_an_object_that_is_gone_makes_none(cluster: KubernetesCluster) -> None:
    mark = {"metadata": {"name": "x", "namespace": "default", "uid": "gone"}, "spec": {}}
    with pytest.raises(Conflict):
        await cluster.apply(ENGINE_REPLICA, mark)


async def test_only_the_very_object_is_deleted(cluster: KubernetesCluster) -> None:
    made = await cluster.create(INFERENCE_SERVICE, service())
    await cluster.delete(INFERENCE_SERVICE, "default", "llama", uid="another")
    await cluster.get(INFERENCE_SERVICE, "default", "llama")
    await cluster.delete(INFERENCE_SERVICE, "default", "llama", uid=made["metadata"]["uid"], grace_seconds=0)
    with pytest.raises(NotFound):
        await cluster.get(INFERENCE_SERVICE, "default", "llama")


async def test_a_status_is_replaced_as_a_whole(cluster: KubernetesCluster) -> None:
    uid = (await cluster.create(INFERENCE_SERVICE, service()))["metadata"]["uid"]
    await cluster.patch_status(INFERENCE_SERVICE, "default", "llama", {"url": "a", "engine": "sim"}, uid=uid)
    after = await cluster.patch_status(INFERENCE_SERVICE, "default", "llama", {"url": "b"})
    assert after["status"] == {"url": "b"}


async def test_the_status_of_another_object_is_not_touched(cluster: KubernetesCluster) -> None:
    uid = (await cluster.create(INFERENCE_SERVICE, service()))["metadata"]["uid"]
    with pytest.raises(Conflict, match="another"):
        await cluster.patch_status(INFERENCE_SERVICE, "default", "llama", {"url": "x"}, uid="another")
    with pytest.raises(Invalid):
        await cluster.patch_status(INFERENCE_SERVICE, "default", "llama", {"replicas": "x"}, uid=uid)
    with pytest.raises(NotFound):
        await cluster.patch_status(INFERENCE_SERVICE, "default", "none", {"url": "x"})


async def test_a_watch_tells_changes_and_bookmarks(cluster: KubernetesCluster) -> None:
    _, version = await cluster.list(INFERENCE_SERVICE)
    seen: list[str] = []

    async def follow() -> None:
        async for event in cluster.watch(INFERENCE_SERVICE, "default", version):
            seen.append(event.type)
            if event.type == "DELETED":
                return

    task = asyncio.create_task(follow())
    await cluster.create(INFERENCE_SERVICE, service())
    await asyncio.sleep(0.12)
    await cluster.delete(INFERENCE_SERVICE, "default", "llama")
    await asyncio.wait_for(task, 10)
    assert seen[0] == "ADDED"
    assert "BOOKMARK" in seen


async def test_a_watch_that_is_too_old_says_so(server: ApiServer, cluster: KubernetesCluster) -> None:
    await cluster.create(INFERENCE_SERVICE, service())
    await cluster.create(POD, {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": []}})
    server.cluster.forget_history()
    with pytest.raises(Expired):
        async for _ in cluster.watch(INFERENCE_SERVICE, None, "1"):
            pass


async def test_errors_name_request_and_status(server: ApiServer, cluster: KubernetesCluster) -> None:
    server.broken = 503
    with pytest.raises(ClusterError, match="GET /api/v1/secrets: broken on purpose") as refused:
        await cluster.list(SECRET)
    assert refused.value.status == 503


async def test_no_answer_is_status_0(server: ApiServer, cluster: KubernetesCluster) -> None:
    assert server._runner is not None
    await server._runner.cleanup()
    with pytest.raises(ClusterError, match="GET") as refused:
        await cluster.list(SECRET)
    assert refused.value.status == 0


async def test_without_a_cluster_the_reason_is_told(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="kubeconfig"):
        async with connect(1.0, kubeconfig=str(tmp_path / "none")):
            pass
