import pytest
from roundhouse_local.api import MemoryCluster
from roundhouse_operator.cluster import (
    CONFIG_MAP,
    ENGINE_REPLICA,
    INFERENCE_SERVICE,
    POD,
    AlreadyExists,
    Conflict,
    Invalid,
    NotFound,
)

from tests.unit.roundhouse_local.objects import Clock, obj, pod


async def test_create_sets_server_metadata(cluster: MemoryCluster) -> None:
    made = await cluster.create(INFERENCE_SERVICE, obj("a", spec={"model": "hf://x/y"}))
    assert made["metadata"] == {
        "name": "a",
        "namespace": "default",
        "uid": "uid-1",
        "generation": 1,
        "creationTimestamp": "2023-11-14T22:13:20Z",
        "resourceVersion": "2",
    }
    assert (made["apiVersion"], made["kind"]) == ("roundhouse.dev/v1alpha1", "InferenceService")


async def test_namespace_defaults(cluster: MemoryCluster) -> None:
    made = await cluster.create(CONFIG_MAP, {"metadata": {"name": "a"}})
    assert made["metadata"]["namespace"] == "default"


async def test_generate_name_takes_a_free_suffix(cluster: MemoryCluster) -> None:
    first = await cluster.create(CONFIG_MAP, {"metadata": {"generateName": "a-"}})
    second = await cluster.create(CONFIG_MAP, {"metadata": {"generateName": "a-"}})
    assert first["metadata"]["name"] != second["metadata"]["name"]


async def test_same_name_is_refused(cluster: MemoryCluster) -> None:
    await cluster.create(CONFIG_MAP, obj("a"))
    with pytest.raises(AlreadyExists, match='configmaps "a" already exists'):
        await cluster.create(CONFIG_MAP, obj("a"))


async def test_same_name_in_another_namespace_is_another_object(cluster: MemoryCluster) -> None:
    await cluster.create(CONFIG_MAP, obj("a"))
    await cluster.create(CONFIG_MAP, obj("a", "other"))
    items, _ = await cluster.list(CONFIG_MAP)
    assert len(items) == 2


async def test_name_of_a_terminating_object_is_refused(cluster: MemoryCluster) -> None:
    await cluster.create(POD, pod("a", spec={"nodeName": "n"}))
    await cluster.delete(POD, "default", "a")
    with pytest.raises(AlreadyExists, match="object is being deleted"):
        await cluster.create(POD, pod("a"))


@pytest.mark.parametrize("name", ["A", "a_b", "-a", "a-", "", "a" * 254, "a..b"])
async def test_bad_names_are_refused(cluster: MemoryCluster, name: str) -> None:
    with pytest.raises(Invalid, match=r"metadata\.name"):
        await cluster.create(CONFIG_MAP, obj(name))


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"name": "a", "labels": {"x": 1}}, "metadata.labels"),
        ({"name": "a", "labels": {"x": "-"}}, "metadata.labels"),
        ({"name": "a", "labels": ["x"]}, "metadata.labels"),
        ({"name": "a", "annotations": {"x": True}}, "metadata.annotations"),
        ({"name": "a", "namespace": "A/b"}, "metadata.namespace"),
        ({"name": 3}, "metadata.name"),
        ("a", "metadata"),
    ],
)
async def test_bad_metadata_is_refused(cluster: MemoryCluster, metadata: object, field: str) -> None:
    with pytest.raises(Invalid, match=field):
        await cluster.create(CONFIG_MAP, {"metadata": metadata})


async def test_values_that_json_cannot_hold_are_refused(cluster: MemoryCluster) -> None:
    with pytest.raises(Invalid, match=r"data\.x: set is not a JSON value"):
        await cluster.create(CONFIG_MAP, obj("a", data={"x": {1}}))
    with pytest.raises(Invalid, match="not a string"):
        await cluster.create(CONFIG_MAP, obj("a", data={1: "x"}))


async def test_wrong_kind_is_refused(cluster: MemoryCluster) -> None:
    with pytest.raises(Invalid, match="kind"):
        await cluster.create(CONFIG_MAP, obj("a", kind="Secret"))


async def test_stored_objects_are_not_shared_with_callers(cluster: MemoryCluster) -> None:
    mine = obj("a", data={"x": "1"})
    made = await cluster.create(CONFIG_MAP, mine)
    mine["data"]["x"] = made["data"]["x"] = "2"
    assert (await cluster.get(CONFIG_MAP, "default", "a"))["data"] == {"x": "1"}


async def test_get_of_a_missing_object_raises_not_found(cluster: MemoryCluster) -> None:
    with pytest.raises(NotFound, match=r'inferenceservices\.roundhouse\.dev "a" not found'):
        await cluster.get(INFERENCE_SERVICE, "default", "a")


async def test_list_filters_by_namespace_and_labels(cluster: MemoryCluster) -> None:
    await cluster.create(CONFIG_MAP, obj("a", labels={"app": "x", "tier": "1"}))
    await cluster.create(CONFIG_MAP, obj("b", labels={"app": "y"}))
    await cluster.create(CONFIG_MAP, obj("c", "other", labels={"app": "x"}))
    names = [item["metadata"]["name"] for item in (await cluster.list(CONFIG_MAP, None, {"app": "x"}))[0]]
    assert names == ["a", "c"]
    names = [item["metadata"]["name"] for item in (await cluster.list(CONFIG_MAP, "default", {"app": "x"}))[0]]
    assert names == ["a"]


async def test_status_is_no_part_of_create_and_apply(cluster: MemoryCluster) -> None:
    made = await cluster.create(ENGINE_REPLICA, obj("a", spec={"x": 1}, status={"ready": True}))
    assert "status" not in made
    made = await cluster.apply(ENGINE_REPLICA, obj("a", spec={"x": 1}, status={"ready": True}))
    assert "status" not in made


async def test_status_is_replaced_and_leaves_generation_alone(cluster: MemoryCluster) -> None:
    await cluster.create(ENGINE_REPLICA, obj("a", spec={"x": 1}))
    await cluster.patch_status(ENGINE_REPLICA, "default", "a", {"old": 1})
    made = await cluster.patch_status(ENGINE_REPLICA, "default", "a", {"new": 1})
    assert made["status"] == {"new": 1}
    assert made["metadata"]["generation"] == 1


async def test_same_status_is_not_written_again(cluster: MemoryCluster) -> None:
    await cluster.create(ENGINE_REPLICA, obj("a"))
    first = await cluster.patch_status(ENGINE_REPLICA, "default", "a", {"x": 1})
    second = await cluster.patch_status(ENGINE_REPLICA, "default", "a", {"x": 1})
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_status_of_a_missing_object_raises_not_found(cluster: MemoryCluster) -> None:
    with pytest.raises(NotFound):
        await cluster.patch_status(ENGINE_REPLICA, "default", "a", {})


async def test_status_for_another_uid_is_a_conflict(cluster: MemoryCluster) -> None:
    await cluster.create(ENGINE_REPLICA, obj("a"))
    with pytest.raises(Conflict):
        await cluster.patch_status(ENGINE_REPLICA, "default", "a", {}, uid="other")


async def test_delete_is_done_when_the_object_is_gone(cluster: MemoryCluster) -> None:
    await cluster.delete(CONFIG_MAP, "default", "a")


async def test_delete_with_another_uid_keeps_the_object(cluster: MemoryCluster) -> None:
    await cluster.create(CONFIG_MAP, obj("a"))
    await cluster.delete(CONFIG_MAP, "default", "a", uid="other")
    assert await cluster.get(CONFIG_MAP, "default", "a")


async def test_unscheduled_pod_goes_at_once(cluster: MemoryCluster) -> None:
    await cluster.create(POD, pod("a"))
    await cluster.delete(POD, "default", "a")
    with pytest.raises(NotFound):
        await cluster.get(POD, "default", "a")


async def test_finished_pod_goes_at_once(cluster: MemoryCluster) -> None:
    await cluster.create(POD, pod("a", spec={"nodeName": "n"}))
    await cluster.patch_status(POD, "default", "a", {"phase": "Failed"})
    await cluster.delete(POD, "default", "a")
    with pytest.raises(NotFound):
        await cluster.get(POD, "default", "a")


async def test_running_pod_terminates_until_the_kubelet_deletes_it(cluster: MemoryCluster, clock: Clock) -> None:
    await cluster.create(POD, pod("a", spec={"nodeName": "n", "terminationGracePeriodSeconds": 60}))
    await cluster.delete(POD, "default", "a")
    metadata = (await cluster.get(POD, "default", "a"))["metadata"]
    assert metadata["deletionTimestamp"] == "2023-11-14T22:14:20Z"
    assert metadata["deletionGracePeriodSeconds"] == 60
    await cluster.delete(POD, "default", "a", grace_seconds=0)
    with pytest.raises(NotFound):
        await cluster.get(POD, "default", "a")


async def test_grace_can_be_shortened_but_not_extended(cluster: MemoryCluster) -> None:
    await cluster.create(POD, pod("a", spec={"nodeName": "n"}))
    await cluster.delete(POD, "default", "a", grace_seconds=20)
    await cluster.delete(POD, "default", "a", grace_seconds=50)
    assert (await cluster.get(POD, "default", "a"))["metadata"]["deletionGracePeriodSeconds"] == 20
    await cluster.delete(POD, "default", "a", grace_seconds=5)
    assert (await cluster.get(POD, "default", "a"))["metadata"]["deletionGracePeriodSeconds"] == 5


async def test_finalizers_hold_an_object_until_they_are_gone(cluster: MemoryCluster) -> None:
    held = obj("a")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await cluster.apply(CONFIG_MAP, held)
    await cluster.delete(CONFIG_MAP, "default", "a")
    assert "deletionTimestamp" in (await cluster.get(CONFIG_MAP, "default", "a"))["metadata"]
    await cluster.apply(CONFIG_MAP, obj("a"))
    with pytest.raises(NotFound):
        await cluster.get(CONFIG_MAP, "default", "a")


async def test_apply_creates_then_changes_generation_only_with_the_spec(cluster: MemoryCluster) -> None:
    await cluster.apply(INFERENCE_SERVICE, obj("a", spec={"model": "hf://x/y"}))
    made = await cluster.apply(INFERENCE_SERVICE, obj("a", labels={"x": "1"}, spec={"model": "hf://x/y"}))
    assert made["metadata"]["generation"] == 1
    made = await cluster.apply(INFERENCE_SERVICE, obj("a", labels={"x": "1"}, spec={"model": "hf://x/z"}))
    assert made["metadata"]["generation"] == 2


async def test_same_apply_is_not_written_again(cluster: MemoryCluster) -> None:
    first = await cluster.apply(INFERENCE_SERVICE, obj("a", spec={"model": "hf://x/y"}))
    second = await cluster.apply(INFERENCE_SERVICE, obj("a", spec={"model": "hf://x/y"}))
    assert first == second


async def test_apply_keeps_the_status(cluster: MemoryCluster) -> None:
    await cluster.create(ENGINE_REPLICA, obj("a", spec={"x": 1}))
    await cluster.patch_status(ENGINE_REPLICA, "default", "a", {"ready": 1})
    made = await cluster.apply(ENGINE_REPLICA, obj("a", spec={"drain": {"deadline": "t"}}))
    assert made["status"] == {"ready": 1}
    assert made["spec"] == {"x": 1, "drain": {"deadline": "t"}}


async def test_apply_with_a_uid_never_makes_a_new_object(cluster: MemoryCluster) -> None:
    wanted = obj("a", spec={"drain": {}})
    wanted["metadata"]["uid"] = "gone"
    with pytest.raises(Conflict, match="no existing object"):
        await cluster.apply(ENGINE_REPLICA, wanted)
    await cluster.create(ENGINE_REPLICA, obj("a"))
    with pytest.raises(Conflict, match="uid"):
        await cluster.apply(ENGINE_REPLICA, wanted)


async def test_apply_with_an_old_resource_version_is_a_conflict(cluster: MemoryCluster) -> None:
    made = await cluster.create(CONFIG_MAP, obj("a"))
    await cluster.apply(CONFIG_MAP, obj("a", data={"x": "1"}))
    made["data"] = {"x": "2"}
    with pytest.raises(Conflict, match="resourceVersion"):
        await cluster.apply(CONFIG_MAP, made)
