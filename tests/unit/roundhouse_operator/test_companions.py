"""PodDisruptionBudget and NetworkPolicy of a service: made once, put right after a resync, never fought over."""

from dataclasses import replace

from roundhouse_operator.cluster import NETWORK_POLICY, POD_DISRUPTION_BUDGET, ClusterError, Conflict, Kind, Obj
from roundhouse_operator.companions import holds

from tests.unit.roundhouse_operator.world import SETTINGS, World, service

NAME = "llama-roundhouse"


async def _there(world: World, kind: Kind) -> Obj:
    return await world.cluster.get(kind, "default", NAME)


async def test_a_budget_lets_one_go_and_what_does_not_work_always(world: World) -> None:
    await world.apply(service())
    await world.reconcile()
    spec = (await _there(world, POD_DISRUPTION_BUDGET))["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    (pod,) = await world.pods()
    assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


async def test_no_policy_unless_asked_for(world: World) -> None:
    await world.apply(service())
    await world.reconcile()
    assert not await world.exists(NETWORK_POLICY, NAME)


async def test_a_policy_that_is_no_longer_asked_for_goes() -> None:
    world = World(replace(SETTINGS, network_policies=True))
    await world.apply(service())
    await world.reconcile()
    assert await world.exists(NETWORK_POLICY, NAME)
    world.context = replace(world.context, settings=SETTINGS)
    world.restart_operator()
    await world.reconcile()
    assert not await world.exists(NETWORK_POLICY, NAME)


async def test_they_go_with_their_service() -> None:
    world = World(replace(SETTINGS, network_policies=True))
    obj = await world.apply(service())
    await world.reconcile()
    await world.cluster.delete(NETWORK_POLICY, "default", NAME, uid="another")
    await world.delete(_service_kind(obj), obj)
    assert not await world.exists(NETWORK_POLICY, NAME)
    assert not await world.exists(POD_DISRUPTION_BUDGET, NAME)


def _service_kind(obj: Obj) -> Kind:
    return Kind(obj["apiVersion"], obj["kind"], "inferenceservices")


async def test_a_deleted_budget_is_made_again_after_a_resync(world: World) -> None:
    await world.apply(service())
    await world.reconcile()
    await world.cluster.delete(POD_DISRUPTION_BUDGET, "default", NAME)
    world.reconciler.forget()
    await world.reconcile()
    assert await world.exists(POD_DISRUPTION_BUDGET, NAME)


async def test_after_a_restart_nothing_is_written_that_is_there(world: World) -> None:
    await world.apply(service())
    await world.ready()
    world.restart_operator()
    world.cluster.writes.clear()
    await world.reconcile()
    assert world.cluster.writes == []


async def test_a_field_that_somebody_else_manages_becomes_a_condition(world: World) -> None:
    await world.apply(service())
    await world.ready()
    budget = await _there(world, POD_DISRUPTION_BUDGET)
    meta = {"name": NAME, "namespace": "default"}
    theirs = {"metadata": meta, "spec": {**budget["spec"], "maxUnavailable": 2}}
    await world.cluster.apply(POD_DISRUPTION_BUDGET, theirs, manager="kubectl", force=True)
    world.reconciler.forget()
    await world.reconcile()
    accepted = await world.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "FieldConflict")
    assert "maxUnavailable" in accepted["message"]
    assert "leave these fields to Roundhouse, or delete the object" in accepted["message"]
    assert (await world.condition("Ready"))["status"] == "True"
    await world.cluster.delete(POD_DISRUPTION_BUDGET, "default", NAME)
    await world.wait(SETTINGS.retry_s + 1)
    assert (await world.condition("Accepted"))["reason"] == "Accepted"


async def test_an_object_of_that_name_of_somebody_else_is_left_alone(world: World) -> None:
    meta = {"name": NAME, "namespace": "default"}
    await world.cluster.create(POD_DISRUPTION_BUDGET, {"metadata": meta, "spec": {"minAvailable": 1}})
    await world.apply(service())
    await world.reconcile()
    assert (await _there(world, POD_DISRUPTION_BUDGET))["spec"] == {"minAvailable": 1}
    assert "belongs to somebody else" in (await world.condition("Accepted"))["message"]


async def test_a_drain_mark_that_somebody_else_manages_becomes_a_condition(world: World) -> None:
    await world.apply(service(replicas=2))
    await world.ready()
    apply = world.cluster.apply

    async def refuse(kind: Kind, obj: Obj, **more: object) -> Obj:
        if kind.kind == "EngineReplica":
            raise Conflict('Apply failed with 1 conflict: conflict with "kubectl": .spec.drain.deadline', 409)
        return await apply(kind, obj, **more)  # type: ignore[arg-type]

    world.cluster.apply = refuse  # type: ignore[method-assign]
    await world.apply(service(replicas=1))
    await world.reconcile()
    await world.reconcile()
    assert (await world.condition("Accepted"))["reason"] == "FieldConflict"
    assert ".spec.drain.deadline" in (await world.condition("Accepted"))["message"]
    world.cluster.apply = apply  # type: ignore[method-assign]
    await world.wait(SETTINGS.retry_s + 1)
    await world.reconcile()
    assert (await world.condition("Accepted"))["reason"] == "Accepted"


async def test_a_chart_without_rights_on_policies_does_no_harm(world: World) -> None:
    get = world.cluster.get

    async def refuse(kind: Kind, namespace: str, name: str) -> Obj:
        if kind == NETWORK_POLICY:
            raise ClusterError("forbidden", 403)
        return await get(kind, namespace, name)

    world.cluster.get = refuse  # type: ignore[method-assign]
    await world.apply(service())
    await world.ready()
    assert (await world.condition("Ready"))["status"] == "True"


def test_defaults_that_a_server_adds_are_no_difference() -> None:
    assert holds({"a": [{"b": 1, "c": 2}], "d": 3}, {"a": [{"b": 1}]})
    assert not holds({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}]})
    assert not holds({"a": 1}, {"a": 2})
    assert not holds({}, {"a": 2})
