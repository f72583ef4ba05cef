"""``spec.scaling`` through the whole reconcile: replicas, status, condition, Events."""

from typing import Any

from roundhouse_kv.records import Demand
from roundhouse_operator.autoscale import Bounds, Load, Situation
from roundhouse_operator.autoscaler import Autoscaler, Subject, report
from roundhouse_operator.cluster import EVENT, POD, Obj

from tests.unit.roundhouse_operator.world import World, lease, service

KEY = "default/llama"
BOUNDS = Bounds(1, 4, 4, 0.8, 60.0)


class Loaded:
    """A service whose replicas all report the same."""

    def __init__(self, **scaling: Any) -> None:
        self.world = World()
        self.spec: dict[str, Any] = {"scaling": {"max": 4, "scaleDownDelaySeconds": 60, **scaling}}

    async def start(self) -> None:
        await self.world.apply(service(**self.spec))
        await self.world.ready()

    async def report(self, seconds: int = 1, **load: Any) -> bool:
        """So many looks, one a second. True when the last one asked for a plan."""
        world, wanted = self.world, False
        for _ in range(seconds):
            world.now += 1
            for pod in await world.pods():
                owner = pod["metadata"]["ownerReferences"][0]["uid"]
                world.leases.by_uid[owner] = lease(owner, pod["metadata"]["uid"], **load)
            wanted = world.context.autoscaler.look(KEY, world.leases.leases(KEY), {}, world.now)
        return wanted

    async def status(self) -> Obj:
        found: Obj = (await self.world.service())["status"]
        return found


IDLE: dict[str, Any] = {"waiting": 0, "running": 0, "kv_used": 0.0}
BUSY: dict[str, Any] = {"waiting": 28, "running": 8, "kv_used": 0.5}


async def test_up_at_once_with_the_reason_in_status_and_an_event() -> None:
    loaded = Loaded()
    await loaded.start()
    assert await loaded.report(**BUSY)
    await loaded.world.ready()
    status = await loaded.status()
    assert len(await loaded.world.pods()) == status["replicas"] == status["scaling"]["replicas"] == 3
    newest, first = status["scaling"]["decisions"]
    assert (newest["previous"], newest["replicas"], newest["reason"]) == (1, 3, "QueueDepth")
    assert "28 waiting" in newest["message"]
    assert first["reason"] == "Started"
    events, _ = await loaded.world.cluster.list(EVENT)
    (event,) = (event for event in events if "28 waiting" in event["message"])
    assert (event["reason"], event["type"]) == ("ScaledUp", "Normal")
    assert event["message"].startswith("from 1 to 3 replicas: ")


async def test_down_one_drained_replica_at_a_time() -> None:
    loaded = Loaded()
    await loaded.start()
    await loaded.report(**BUSY)
    await loaded.world.ready()
    assert await loaded.report(62, **IDLE)
    await loaded.world.reconcile()
    marked = [obj for obj in await loaded.world.replicas() if "drain" in obj["spec"]]
    assert len(marked) == 1
    assert not await loaded.report(30, **IDLE)
    assert len(await loaded.world.pods()) == 3
    loaded.world.agents.answers |= dict.fromkeys(loaded.world.agents.deadlines, "drained")
    await loaded.world.ready()
    assert len(await loaded.world.pods()) == 2
    steps = [(item["previous"], item["replicas"]) for item in (await loaded.status())["scaling"]["decisions"]]
    assert steps == [(2, 1), (3, 2), (1, 3), (0, 1)]  # the next one once the last one is gone


async def test_a_lost_replica_is_replaced_and_counts_on() -> None:
    loaded = Loaded()
    await loaded.start()
    await loaded.report(**BUSY)
    await loaded.world.ready()
    pod = (await loaded.world.pods())[0]
    await loaded.world.delete(POD, pod, grace_seconds=0)
    await loaded.world.ready()
    assert len(await loaded.world.pods()) == 3
    assert (await loaded.status())["scaling"]["replicas"] == 3


async def test_a_new_operator_goes_on_with_what_was_decided() -> None:
    loaded = Loaded()
    await loaded.start()
    await loaded.report(**BUSY)
    await loaded.world.ready()
    loaded.world.restart_operator()
    await loaded.world.reconcile()
    assert len(await loaded.world.pods()) == 3
    assert not await loaded.report(60, **IDLE)
    assert await loaded.report(2, **IDLE)


async def test_a_rollout_with_a_surge_does_not_count_as_more() -> None:
    loaded = Loaded(min=2, max=4)
    loaded.spec["rollout"] = {"maxSurge": 1, "maxUnavailable": 0}
    await loaded.start()
    loaded.spec["engine"] = {"args": ["--other"]}
    await loaded.world.apply(service(**loaded.spec))
    await loaded.world.reconcile()
    assert len(await loaded.world.pods()) == 3
    assert (await loaded.status())["scaling"]["replicas"] == 2


async def test_from_a_fixed_number_to_scaling_keeps_what_is_there() -> None:
    loaded = Loaded()
    await loaded.world.apply(service(replicas=3))
    await loaded.world.ready()
    assert (await loaded.world.condition("ScalingActive"))["reason"] == "FixedReplicas"
    await loaded.world.apply(service(**loaded.spec))
    await loaded.world.reconcile()
    assert (await loaded.status())["scaling"]["replicas"] == 3
    assert (await loaded.world.condition("ScalingActive"))["reason"] == "Scaling"


async def test_back_to_a_fixed_number_forgets_the_decisions() -> None:
    loaded = Loaded()
    await loaded.start()
    await loaded.world.apply(service(replicas=2))
    await loaded.world.ready()
    assert "scaling" not in await loaded.status()
    assert loaded.world.context.autoscaler.services() == []


async def test_a_spec_that_broke_changes_nothing() -> None:
    loaded = Loaded()
    await loaded.start()
    await loaded.report(**BUSY)
    await loaded.world.ready()
    await loaded.world.apply(service(podTemplate={"spec": {}}, **loaded.spec))
    broken = service(engine={"args": ["--host", "x"]}, **loaded.spec)
    await loaded.world.apply(broken)
    await loaded.world.ready()
    assert (await loaded.world.condition("Accepted"))["reason"] == "InvalidSpec"
    assert len(await loaded.world.pods()) == 3
    assert (await loaded.status())["scaling"]["replicas"] == 3


async def test_more_wished_for_than_allowed_is_a_condition_that_lasts() -> None:
    loaded = Loaded(max=2)
    await loaded.start()
    assert await loaded.report(waiting=100, running=8, kv_used=0.9)
    await loaded.world.ready()
    assert await loaded.report(waiting=50, running=8, kv_used=0.9) is False
    found = await loaded.world.condition("ScalingActive")
    assert (found["status"], found["reason"]) == ("True", "AtMaximum")
    assert "raise spec.scaling.max" in found["message"]
    assert not await loaded.report(30, **IDLE)
    assert await loaded.report(32, **IDLE)


async def test_unknown_loads_are_a_condition() -> None:
    loaded = Loaded()
    await loaded.start()
    await loaded.report(**IDLE)
    assert await loaded.report(40, waiting=None, running=None, kv_used=None)
    await loaded.world.reconcile()
    found = await loaded.world.condition("ScalingActive")
    assert (found["status"], found["reason"]) == ("Unknown", "LoadUnknown")
    assert "log of container agent" in found["message"]


async def test_the_same_event_counts_on() -> None:
    loaded = Loaded(max=4)
    await loaded.start()
    for load in (BUSY, {**BUSY, "waiting": 60}):
        await loaded.report(**load)
        await loaded.world.ready()
    events, _ = await loaded.world.cluster.list(EVENT)
    (event,) = (event for event in events if event["reason"] == "ScaledUp")
    assert event["count"] == 3  # the start counts, too
    assert event["firstTimestamp"] < event["lastTimestamp"]


def test_a_lease_of_another_pod_tells_nothing() -> None:
    leases = {"a": lease("a", "pod-a", waiting=1, running=2, kv_used=0.5), "b": lease("b", "old", waiting=9)}
    found = report({"a": "pod-a", "b": "pod-b", "c": "pod-c"}, leases, [Demand(held=2), Demand(held=1)])
    assert found.loads == (Load(1, 2, 0.5), Load(), Load())
    assert found.held == 3


def test_other_bounds_begin_a_new_history() -> None:
    autoscaler = Autoscaler()
    subject = Subject(BOUNDS, Situation(1, 1, settled=True), {})
    autoscaler.follow("a", subject, 0.0)
    before = autoscaler.history("a")
    autoscaler.follow("a", subject, 1.0)
    assert autoscaler.history("a") is before
    autoscaler.follow("a", Subject(Bounds(1, 9, 4, 0.8, 60.0), subject.situation, {}), 2.0)
    assert autoscaler.history("a") is not before
    autoscaler.forget("a")
    assert autoscaler.services() == []
