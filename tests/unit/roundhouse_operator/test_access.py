"""The agents' credentials: one Secret per namespace, with a user of its own where asked for."""

import asyncio
from base64 import b64decode
from dataclasses import replace

from roundhouse_operator.cluster import INFERENCE_SERVICE, SECRET
from roundhouse_operator.names import REDIS_SECRET, agent_user

from tests.unit.roundhouse_operator.world import SETTINGS, World, service

ACL = replace(SETTINGS, redis_password="installation's own", redis_acl=True)


async def _credentials(world: World, namespace: str = "default") -> tuple[str, str]:
    data = (await world.cluster.get(SECRET, namespace, REDIS_SECRET))["data"]
    return b64decode(data["username"]).decode(), b64decode(data["password"]).decode()


async def test_each_namespace_has_a_user_and_a_password_of_its_own() -> None:
    world = World(ACL)
    for namespace in ("default", "other"):
        await world.apply(service(namespace=namespace))
    await world.reconcile("default/llama", "other/llama")
    one, two = await _credentials(world), await _credentials(world, "other")
    assert one[0] == agent_user("test", "default") != two[0]
    assert one[1] != two[1]
    assert "installation's own" not in (one[1], two[1])
    assert world.users.passwords == dict([one, two])


async def test_the_password_stays_when_the_operator_or_redis_begins_anew() -> None:
    world = World(ACL)
    await world.apply(service())
    await world.reconcile()
    before = await _credentials(world)
    world.users.passwords.clear()
    world.restart_operator()
    await world.reconcile()
    assert await _credentials(world) == before
    assert world.users.passwords == dict([before])


async def test_a_lost_secret_comes_back_as_it_was_because_pods_keep_the_password() -> None:
    world = World(ACL)
    await world.apply(service())
    await world.reconcile()
    before = await _credentials(world)
    await world.cluster.delete(SECRET, "default", REDIS_SECRET)
    world.reconciler.forget()
    await world.reconcile()
    assert await _credentials(world) == before


async def test_two_services_that_come_at_once_share_one_password() -> None:
    world = World(replace(ACL, redis_password=""))  # then it is random
    await asyncio.gather(world.context.access.grant("default"), world.context.access.grant("default"))
    assert world.users.passwords == dict([await _credentials(world)])
    assert world.cluster.writes.count("apply Secret") == 1


async def test_replicas_are_made_while_redis_is_away_and_the_user_later() -> None:
    world = World(ACL)
    world.users.down = True
    await world.apply(service())
    await world.ready()
    assert (await world.condition("Ready"))["status"] == "True"
    world.users.down = False
    world.now += ACL.retry_s + 1
    key = world.backlog.take(world.now)  # it comes back by itself
    assert key is not None
    await world.reconciler.reconcile(key)
    assert list(world.users.passwords) == [agent_user("test", "default")]


async def test_the_last_service_of_a_namespace_takes_secret_and_user_along() -> None:
    world = World(ACL)
    obj = await world.apply(service())
    await world.reconcile()
    await world.delete(INFERENCE_SERVICE, obj)
    await world.finish_terminating()
    await world.reconcile()
    assert not await world.exists(SECRET, REDIS_SECRET)
    assert world.users.passwords == {}


async def test_a_secret_from_before_gets_a_user_of_its_own() -> None:
    world = World(replace(ACL, redis_acl=False))
    await world.apply(service())
    await world.reconcile()
    assert await _credentials(world) == ("", "installation's own")
    world.context = replace(world.context, settings=ACL)
    world.restart_operator()
    await world.reconcile()
    assert (await _credentials(world))[0] == agent_user("test", "default")


async def test_a_secret_that_somebody_broke_becomes_a_condition_until_it_is_gone() -> None:
    world = World(ACL)
    await world.apply(service())
    await world.reconcile()
    broken = {"metadata": {"name": REDIS_SECRET, "namespace": "default"}, "data": {"password": "%"}}
    await world.cluster.apply(SECRET, broken, manager="kubectl", force=True)
    world.reconciler.forget()
    await world.reconcile()
    assert (await world.condition("Accepted"))["reason"] == "FieldConflict"
    assert "roundhouse-redis" in (await world.condition("Accepted"))["message"]
    await world.cluster.delete(SECRET, "default", REDIS_SECRET)
    await world.wait(ACL.retry_s + 1)
    assert (await world.condition("Accepted"))["reason"] == "Accepted"
    credentials = await _credentials(world)
    assert world.users.passwords == dict([credentials])
