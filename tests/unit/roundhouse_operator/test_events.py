"""Events: what people hear of, once each."""

from roundhouse_operator.cluster import EVENT, INFERENCE_SERVICE, ClusterError

from tests.unit.roundhouse_operator.world import World, service


async def reasons(world: World) -> dict[str, str]:
    found, _ = await world.cluster.list(EVENT)
    return {event["reason"]: event["type"] for event in found}


async def test_the_way_to_ready_is_told(world: World) -> None:
    await world.apply(service())
    await world.ready()
    assert await reasons(world) == {"Starting": "Normal", "Serving": "Normal"}


async def test_trouble_is_a_warning_with_its_message(world: World) -> None:
    await world.apply(service(engine={"args": ["--port", "1"]}))
    await world.reconcile()
    (event,), _ = await world.cluster.list(EVENT)
    assert (event["type"], event["reason"]) == ("Warning", "InvalidSpec")
    assert "--port" in event["message"]
    assert event["involvedObject"]["name"] == "llama"


async def test_the_same_again_is_the_same_event_with_a_new_time(world: World) -> None:
    await world.apply(service())
    await world.ready()
    before = len(await reasons(world))
    (pod,) = await world.pods()
    for _ in range(3):
        await world.crash(pod, 1, running=True)
        await world.wait(5)
        await world.start(pod)
        await world.wait(5)
    found, _ = await world.cluster.list(EVENT)
    assert len(found) == before + 1  # LoadingModel
    (serving,) = [event for event in found if event["reason"] == "Serving"]
    assert serving["lastTimestamp"] > serving["firstTimestamp"]
    assert serving["count"] == 4


async def test_events_go_with_their_service(world: World) -> None:
    await world.apply(service())
    await world.ready()
    await world.delete(INFERENCE_SERVICE, await world.service())
    assert await reasons(world) == {}


async def test_an_event_that_is_refused_hinders_nothing(world: World) -> None:
    create = world.cluster.create

    async def refuse(kind: object, obj: dict[str, object], **more: object) -> dict[str, object]:
        if kind == EVENT:
            raise ClusterError("forbidden", 403)
        return await create(kind, obj, **more)

    world.cluster.create = refuse  # type: ignore[method-assign]
    await world.apply(service())
    await world.ready()
    assert (await world.condition("Ready"))["status"] == "True"
    assert await reasons(world) == {}
