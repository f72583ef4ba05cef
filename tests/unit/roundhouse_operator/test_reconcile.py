"""Reconciling against the in-memory API: what is written, in which order, and what comes of it."""

from dataclasses import replace

import pytest
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, POD, SECRET, ClusterError
from roundhouse_operator.timestamps import from_timestamp

from tests.unit.roundhouse_operator.world import SETTINGS, World, service


async def test_one_pass_makes_replica_pod_and_status(world: World) -> None:
    await world.apply(service())
    await world.reconcile()
    (replica,), (pod,) = await world.replicas(), await world.pods()
    assert pod["metadata"]["name"] == replica["metadata"]["name"]
    assert replica["status"]["podUID"] == pod["metadata"]["uid"]
    assert (await world.condition("Progressing"))["status"] == "True"


async def test_becomes_ready_with_url_selector_and_counts(world: World) -> None:
    await world.apply(service(replicas=2))
    await world.ready()
    status = (await world.service())["status"]
    assert (status["replicas"], status["readyReplicas"], status["updatedReadyReplicas"]) == (2, 2, 2)
    assert status["url"] == "http://gw/v1"
    assert status["selector"] == "app.kubernetes.io/managed-by=roundhouse,roundhouse.dev/service=llama"
    assert {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]} == {
        "Accepted": ("True", "Accepted"),
        "Progressing": ("False", "Complete"),
        "Available": ("True", "Serving"),
        "Ready": ("True", "Serving"),
        "ScalingActive": ("False", "FixedReplicas"),
        "LiveData": ("True", "Fresh"),
    }


async def test_nothing_is_written_when_nothing_changes(world: World) -> None:
    await world.apply(service(replicas=2))
    await world.ready()
    world.cluster.writes.clear()
    await world.wait(600)
    assert world.cluster.writes == []


async def test_few_writes_from_create_to_ready(world: World) -> None:
    await world.apply(service())
    world.cluster.writes.clear()
    await world.reconcile()
    await world.start_all()
    await world.reconcile()
    ours = [write for write in world.cluster.writes if write not in ("status Pod", "create Event")]
    assert len(ours) <= 7, ours


async def test_a_restarted_operator_writes_nothing(world: World) -> None:
    await world.apply(service(replicas=2))
    await world.ready()
    world.cluster.writes.clear()
    world.restart_operator()
    await world.reconcile()
    assert world.cluster.writes == []


async def test_members_are_published_once_ready(world: World) -> None:
    await world.apply(service(replicas=2, servedNames=["m"]))
    await world.reconcile()
    entry = world.publisher.entry("default/llama")
    assert entry is not None
    assert (entry.served_names, entry.members) == (("m",), ())
    await world.ready()
    entry = world.publisher.entry("default/llama")
    assert entry is not None
    assert {member.address for member in entry.members} == {"10.0.0.1", "10.0.0.2"}
    assert {member.engine_model for member in entry.members} == {"llama"}


async def test_scaling_down_drains_then_deletes(world: World) -> None:
    await world.apply(service(replicas=2))
    await world.ready()
    await world.apply(service(replicas=1))
    await world.reconcile()
    (draining,) = [obj for obj in await world.replicas() if "drain" in obj["spec"]]
    address = draining["status"]["address"]
    assert world.agents.deadlines[address] == from_timestamp(draining["spec"]["drain"]["deadline"])
    assert world.agents.deadlines[address] == world.now + SETTINGS.drain_s
    assert len(await world.pods()) == 2
    world.agents.answers[address] = "drained"
    await world.wait(1)
    assert len(await world.replicas()) == 1
    await world.finish_terminating()
    assert len(await world.pods()) == 1


async def test_a_drain_ends_at_its_deadline(world: World) -> None:
    await world.apply(service(replicas=2, drain={"timeoutSeconds": 30}))
    await world.ready()
    await world.apply(service(replicas=1, drain={"timeoutSeconds": 30}))
    await world.reconcile()
    await world.wait(30 + SETTINGS.continuation_s)
    assert len(await world.replicas()) == 2
    await world.wait(1)
    assert len(await world.replicas()) == 1


async def test_an_unreachable_agent_is_told_again(world: World) -> None:
    await world.apply(service(replicas=1))
    await world.ready()
    (replica,) = await world.replicas()
    address = replica["status"]["address"]
    world.agents.down.add(address)
    await world.apply(service(replicas=0))
    await world.reconcile()
    assert world.agents.deadlines == {}
    world.agents.down.clear()
    await world.wait(1)
    assert address in world.agents.deadlines


async def test_scaling_up_again_calls_the_drain_off(world: World) -> None:
    await world.apply(service(replicas=2))
    await world.ready()
    await world.apply(service(replicas=1))
    await world.reconcile()
    await world.apply(service(replicas=2))
    await world.reconcile()
    assert len(world.agents.undrained) == 1
    assert not [obj for obj in await world.replicas() if "drain" in obj["spec"]]
    assert len(await world.replicas()) == 2


async def test_a_drain_that_cannot_be_called_off_is_finished(world: World) -> None:
    await world.apply(service(replicas=2))
    await world.ready()
    await world.apply(service(replicas=1))
    await world.reconcile()
    (address,) = world.agents.deadlines
    world.agents.answers[address] = "drained"
    await world.apply(service(replicas=2))
    await world.ready()
    addresses = {obj["status"]["address"] for obj in await world.replicas()}
    assert address not in addresses
    assert len(addresses) == 2


async def test_the_mark_of_a_drain_stays_while_its_agent_is_unreachable(world: World) -> None:
    await world.apply(service(replicas=2))
    await world.ready()
    await world.apply(service(replicas=1))
    await world.reconcile()
    (address,) = world.agents.deadlines
    world.agents.down.add(address)
    await world.apply(service(replicas=2))
    await world.reconcile()
    assert len([obj for obj in await world.replicas() if "drain" in obj["spec"]]) == 1


async def test_a_changed_spec_rolls_one_by_one(world: World) -> None:
    await world.apply(service(replicas=3))
    await world.ready()
    before = {obj["metadata"]["name"] for obj in await world.replicas()}
    await world.apply(service(replicas=3, engine={"args": ["--x"]}))
    for _ in range(20):
        await world.wait(1)
        status = (await world.service())["status"]
        assert status["readyReplicas"] >= 2
        assert len(await world.pods()) <= 3
        for address in list(world.agents.deadlines):
            world.agents.answers[address] = "drained"
        await world.start_all()
        await world.finish_terminating()
    after = await world.replicas()
    assert len(after) == 3
    assert not before & {obj["metadata"]["name"] for obj in after}
    assert (await world.condition("Progressing"))["reason"] == "Complete"


async def test_changed_names_or_drain_roll_nothing(world: World) -> None:
    await world.apply(service())
    await world.ready()
    (before,) = await world.replicas()
    await world.apply(service(servedNames=["other"], drain={"timeoutSeconds": 5}, modelSecret={"name": "token"}))
    await world.cluster.create(SECRET, {"metadata": {"name": "token", "namespace": "default"}})
    await world.ready()
    (after,) = await world.replicas()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_a_deleted_pod_is_replaced_by_a_new_replica(world: World) -> None:
    await world.apply(service())
    await world.ready()
    (before,), (pod,) = await world.replicas(), await world.pods()
    await world.delete(POD, pod)
    await world.reconcile()
    entry = world.publisher.entry("default/llama")
    assert entry is not None
    assert [member.terminating for member in entry.members] == [True]
    assert len(await world.pods()) == 1  # no surge while it still holds its hardware
    await world.finish_terminating()
    await world.ready()
    (after,) = await world.replicas()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert (await world.condition("Ready"))["status"] == "True"


async def test_a_deleted_replica_is_replaced_and_stays_a_member_until_its_pod_is_gone(world: World) -> None:
    await world.apply(service())
    await world.ready()
    (before,) = await world.replicas()
    await world.delete(ENGINE_REPLICA, before)
    await world.reconcile()
    entry = world.publisher.entry("default/llama")
    assert entry is not None
    assert [(member.name, member.terminating) for member in entry.members] == [(before["metadata"]["name"], True)]
    await world.finish_terminating()
    await world.ready()
    (after,) = await world.replicas()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_a_pod_that_never_ends_is_given_up(world: World) -> None:
    await world.apply(service())
    await world.ready()
    (pod,) = await world.pods()
    await world.delete(POD, pod)
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    await world.wait(grace + SETTINGS.overdue_s)
    assert len(await world.pods()) == 1
    await world.wait(1)
    assert len(await world.pods()) == 2
    await world.start_all()
    await world.reconcile()
    entry = world.publisher.entry("default/llama")
    assert entry is not None
    assert len(entry.members) == 1
    assert not entry.members[0].terminating


async def test_a_deleted_service_leaves_nothing(world: World) -> None:
    await world.apply(service())
    await world.ready()
    await world.delete(INFERENCE_SERVICE, await world.service())
    await world.reconcile()
    assert world.publisher.entry("default/llama") is None
    assert world.purged == []  # its agents still write
    await world.finish_terminating()
    await world.wait(1)
    assert world.purged == ["default/llama"]
    assert await world.replicas() == []
    assert world.leases.followed == {}


async def test_the_redis_secret_comes_and_goes_with_the_services_of_a_namespace() -> None:
    world = World(replace(SETTINGS, redis_password="secret", redis_username="agent"))
    await world.apply(service("a"))
    await world.apply(service("b"))
    await world.reconcile("default/a", "default/b")
    secret = await world.cluster.get(SECRET, "default", "roundhouse-redis")
    assert set(secret["data"]) == {"username", "password"}
    (pod, _) = await world.pods()
    names = {item["name"] for item in pod["spec"]["initContainers"][0]["env"]}
    assert {"RH_REDIS_USERNAME", "RH_REDIS_PASSWORD"} <= names
    await world.delete(INFERENCE_SERVICE, await world.service("default/a"))
    await world.wait(1, "default/a")
    assert await world.exists(SECRET, "roundhouse-redis")
    await world.delete(INFERENCE_SERVICE, await world.service("default/b"))
    await world.wait(1, "default/b")
    assert not await world.exists(SECRET, "roundhouse-redis")


async def test_a_changed_redis_secret_is_put_right_after_a_resync() -> None:
    world = World(replace(SETTINGS, redis_password="secret"))
    await world.apply(service())
    await world.reconcile()
    await world.delete(SECRET, {"metadata": {"namespace": "default", "name": "roundhouse-redis"}})
    world.reconciler.forget()
    await world.reconcile()
    assert await world.exists(SECRET, "roundhouse-redis")


async def test_re_created_within_a_second_starts_anew(world: World) -> None:
    await world.apply(service())
    await world.ready()
    (before,) = await world.replicas()
    await world.delete(INFERENCE_SERVICE, await world.service())
    await world.apply(service())
    await world.ready()
    (after,) = await world.replicas()
    assert after["metadata"]["name"] != before["metadata"]["name"]
    assert (await world.condition("Ready"))["status"] == "True"
    assert world.purged == []


async def test_a_refused_pod_is_explained_and_tried_again(world: World) -> None:
    world.cluster.refuse_pods = ClusterError('pods "x" is forbidden: exceeded quota: gpus', 403)
    await world.apply(service())
    await world.reconcile()
    ready = await world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "QuotaExceeded")
    assert "raise the quota" in ready["message"]
    world.cluster.refuse_pods = None
    await world.wait(SETTINGS.retry_s)
    await world.ready()
    assert (await world.condition("Ready"))["status"] == "True"


async def test_a_pod_name_of_another_owner_is_waited_for(world: World) -> None:
    await world.apply(service())
    world.cluster.refuse_pods = ClusterError("later", 503)
    with pytest.raises(ClusterError, match="later"):
        await world.reconcile()
    (replica,) = await world.replicas()
    world.cluster.refuse_pods = None
    name = replica["metadata"]["name"]
    await world.cluster.create(POD, {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": []}})
    key = "default/llama"
    with pytest.raises(ClusterError, match="another owner"):
        await world.reconciler.reconcile(key)
    await world.delete(POD, {"metadata": {"name": name, "namespace": "default"}})
    await world.reconciler.reconcile(key)
    assert len(await world.pods()) == 1


async def test_an_object_made_before_its_answer_got_lost_is_taken_for_ours(world: World) -> None:
    await world.apply(service())
    stale = await world.service()
    await world.reconcile()
    (replica,) = await world.replicas()
    created = await world.reconciler._create_or_find(ENGINE_REPLICA, {**replica, "status": {}})
    assert created["metadata"]["uid"] == replica["metadata"]["uid"]
    assert stale["metadata"]["uid"] == replica["metadata"]["ownerReferences"][0]["uid"]


async def test_the_oldest_has_the_served_name(world: World) -> None:
    await world.apply(service("old", servedNames=["m"]))
    world.now += 1
    await world.apply(service("new", servedNames=["m"]))
    await world.reconcile("default/new", "default/old")
    accepted = await world.condition("Accepted", "default/new")
    assert (accepted["status"], accepted["reason"]) == ("False", "ServedNameConflict")
    assert "default/old" in accepted["message"]
    entry = world.publisher.entry("default/new")
    assert entry is not None
    assert entry.served_names == ("default/new",)
    await world.delete(INFERENCE_SERVICE, await world.service("default/old"))
    await world.reconcile("default/old")
    assert (await world.condition("Accepted", "default/new"))["status"] == "True"


async def test_a_missing_secret_holds_back_new_replicas_only(world: World) -> None:
    await world.apply(service(modelSecret={"name": "token"}))
    await world.reconcile()
    assert await world.replicas() == []
    ready = await world.condition("Ready")
    assert (ready["reason"], "create it" in ready["message"]) == ("SecretNotFound", True)
    await world.cluster.create(SECRET, {"metadata": {"name": "token", "namespace": "default"}})
    await world.wait(SETTINGS.retry_s)
    assert len(await world.replicas()) == 1


async def test_redis_down_changes_only_live_data(world: World) -> None:
    await world.apply(service())
    await world.ready()
    (before,) = await world.replicas()
    world.redis_healthy = False
    world.leases.by_uid.clear()
    await world.wait(60)
    assert (await world.condition("LiveData"))["status"] == "Unknown"
    assert (await world.condition("Ready"))["status"] == "True"
    (after,) = await world.replicas()
    assert after["status"] == before["status"]
