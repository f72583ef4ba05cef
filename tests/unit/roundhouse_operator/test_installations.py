"""Two installations and one object: one of them serves it, both say so, and nobody fights."""

from dataclasses import replace

from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, Obj
from roundhouse_operator.installations import FORGET_S, TAKEOVER_S

from tests.unit.roundhouse_operator.world import SETTINGS, World, service


class Pair:
    """Two operators of different installations on one cluster."""

    def __init__(self) -> None:
        self.one, self.two = World(), World(replace(SETTINGS, installation="other/release"))
        self.two.cluster = self.one.cluster
        self.two.context = replace(self.two.context, cluster=self.one.cluster, access=self.two._access(SETTINGS))
        self.two.restart_operator()

    async def both(self, seconds: float = 0.0, *keys: str) -> None:
        self.one.now += seconds
        self.two.now = self.one.now
        for _ in range(3):
            await self.one.reconcile(*keys)
            await self.two.reconcile(*keys)

    async def status(self, key: str = "default/llama") -> Obj:
        found: Obj = (await self.one.service(key))["status"]
        return found


async def test_the_first_one_serves_and_the_second_one_leaves_it_alone() -> None:
    pair = Pair()
    await pair.one.apply(service())
    await pair.both()
    status = await pair.status()
    assert status["installation"] == "test"
    assert (status["contender"]["installation"], status["contender"]["refused"]) == ("other/release", True)
    assert len(await pair.one.replicas()) == 1
    assert "default/llama" not in pair.two.publisher.entries()
    accepted = await pair.one.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "InstallationConflict")
    assert "other/release" in accepted["message"]
    assert "watchNamespaces" in accepted["message"]


async def test_a_standing_conflict_writes_nothing() -> None:
    pair = Pair()
    await pair.one.apply(service())
    await pair.both()
    pair.one.cluster.writes.clear()
    await pair.both(TAKEOVER_S + 60)
    assert pair.one.cluster.writes == []


async def test_the_condition_goes_when_the_second_one_is_gone() -> None:
    pair = Pair()
    await pair.one.apply(service())
    await pair.both()
    pair.one.now += FORGET_S + 1
    await pair.one.reconcile()
    assert "contender" not in await pair.status()
    assert (await pair.one.condition("Accepted"))["reason"] == "Accepted"


async def test_a_second_one_that_is_still_there_says_so_again() -> None:
    pair = Pair()
    await pair.one.apply(service())
    await pair.both()
    await pair.both(FORGET_S + 1)
    status = await pair.status()
    assert (status["installation"], status["contender"]["refused"]) == ("test", True)


async def test_a_new_installation_takes_over_from_one_that_is_gone_and_rolls_its_replicas() -> None:
    pair = Pair()
    await pair.one.apply(service())
    await pair.one.ready()
    (old,) = await pair.one.replicas()
    pair.two.now = pair.one.now
    await pair.two.reconcile()
    assert (await pair.status())["installation"] == "test"
    await pair.two.wait(TAKEOVER_S + 2)
    status = await pair.status()
    assert status["installation"] == "other/release"
    assert "contender" not in status
    pair.two.agents.answers["10.0.0.1"] = "drained"
    await pair.two.ready()
    replicas = await pair.two.replicas()
    assert [obj["metadata"]["uid"] for obj in replicas] != [old["metadata"]["uid"]]
    agent = replicas[0]["spec"]["template"]["spec"]["initContainers"][0]
    assert {"name": "RH_INSTALLATION", "value": "other/release"} in agent["env"]


async def test_a_new_one_takes_over_also_after_it_was_once_refused() -> None:
    pair = Pair()
    await pair.one.apply(service())
    await pair.both()
    for seconds in (FORGET_S + TAKEOVER_S + 2, TAKEOVER_S + 2):
        pair.two.now = pair.one.now = pair.one.now + seconds
        await pair.two.reconcile()
    assert (await pair.status())["installation"] == "other/release"


async def test_a_further_object_of_the_same_namespace_goes_to_the_same_installation() -> None:
    pair = Pair()
    await pair.one.apply(service())
    await pair.both()
    await pair.one.apply(service("further"))
    await pair.two.reconcile("default/further")
    await pair.both(0.0, "default/further")
    assert (await pair.status("default/further"))["installation"] == "test"


async def test_an_object_of_another_namespace_goes_to_whoever_comes_first() -> None:
    pair = Pair()
    await pair.one.apply(service())
    await pair.both()
    await pair.one.apply(service("further", namespace="elsewhere"))
    await pair.two.reconcile("elsewhere/further")
    assert (await pair.status("elsewhere/further"))["installation"] == "other/release"


async def test_deleting_the_object_ends_the_conflict() -> None:
    pair = Pair()
    obj = await pair.one.apply(service())
    await pair.both()
    await pair.one.delete(INFERENCE_SERVICE, obj)
    await pair.one.finish_terminating()
    await pair.both()
    assert not await pair.one.exists(ENGINE_REPLICA, "llama")
    assert "default/llama" in pair.one.purged
