"""The operator as a whole: watches, queue, leases, catalogue, with a Valkey that may die."""

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as aioredis
from redis.exceptions import RedisError
from roundhouse_kv.records import Progress, ServiceEntry
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, POD, SECRET, NotFound
from roundhouse_operator.core import OperatorCore
from roundhouse_operator.errors import SourceEnded

from tests.integration.kv.harness import eventually, eventually_async
from tests.integration.operator.rig import Rig, rig, settings
from tests.unit.roundhouse_operator.world import service

pytestmark = pytest.mark.integration


@pytest.fixture
async def world() -> AsyncIterator[Rig]:
    async with rig() as world:
        yield world


async def entry_of(world: Rig) -> ServiceEntry:
    entry = await world.entry("default/llama")
    assert entry is not None
    return entry


async def test_from_apply_to_members_and_back_to_nothing(world: Rig) -> None:
    async def only_the_catalogue_is_left() -> bool:
        return await world.redis_keys() == ["rh:test:catalogue", "rh:test:term"]

    async with world.operator():
        await world.apply(service(replicas=2))
        await eventually_async(world.ready)
        await eventually_async(lambda: world.has_members(2))
        assert all(member.address.startswith("10.0.0.") for member in (await entry_of(world)).members)
        await world.cluster.delete(INFERENCE_SERVICE, "default", "llama")
        await eventually_async(world.gone)
        await eventually_async(only_the_catalogue_is_left)
        assert await world.entry("default/llama") is None


async def test_a_rollout_drains_through_the_agents(world: Rig) -> None:
    async with world.operator():
        await world.apply(service(replicas=2))
        await eventually_async(lambda: world.has_members(2))
        before = {member.replica_uid for member in (await entry_of(world)).members}
        await world.apply(service(replicas=2, engine={"args": ["--x"]}))

        async def rolled() -> bool:
            world.agents.answers |= dict.fromkeys(world.agents.deadlines, "drained")
            now = {member.replica_uid for member in (await entry_of(world)).members}
            return len(now) == 2 and not now & before

        await eventually_async(rolled)
        assert len(world.agents.deadlines) == 2


async def test_leases_reach_the_status(world: Rig) -> None:
    async def stack_is_shown() -> bool:
        (replica,) = await world.objects(ENGINE_REPLICA)
        found: bool = (replica.get("status") or {}).get("stack") == {"engine": "torch", "version": "1"}
        return found

    async with world.operator():
        await world.apply(service())
        await eventually_async(world.ready)
        world.kubelet.lease_changes = {"stack": {"engine": "torch", "version": "1"}}
        await eventually_async(stack_is_shown)


async def test_a_hung_replica_is_replaced(world: Rig) -> None:
    async with world.operator():
        await world.apply(service())
        await eventually_async(world.ready)
        (before,) = await world.objects(ENGINE_REPLICA)
        world.kubelet.lease_changes = {"hung": True, "progress": Progress(phase="load")}

        async def another() -> bool:
            found = await world.objects(ENGINE_REPLICA)
            return bool(found) and found[0]["metadata"]["uid"] != before["metadata"]["uid"]

        await eventually_async(another)
        world.kubelet.lease_changes = {}
        await eventually_async(world.ready)


async def test_an_operator_that_starts_again_changes_nothing(world: Rig) -> None:
    async with world.operator():
        await world.apply(service(replicas=2))
        await eventually_async(lambda: world.has_members(2))
    before = await world.objects(ENGINE_REPLICA)
    stamp = await world.catalogue.stamp()
    assert stamp is not None

    async def new_term() -> bool:
        now = await world.catalogue.stamp()
        return now is not None and now[0] > stamp[0]

    async with world.operator():
        await eventually_async(new_term)
        assert await world.members() == 2
    assert await world.objects(ENGINE_REPLICA) == before


async def test_what_was_deleted_while_no_operator_ran_is_purged(world: Rig) -> None:
    async with world.operator():
        await world.apply(service())
        await world.apply(service("other"))
        await eventually_async(lambda: world.has_members(1))
        await eventually_async(lambda: world.has_members(1, "default/other"))
    await world.cluster.delete(INFERENCE_SERVICE, "default", "llama")
    await eventually_async(lambda: world.has_pods(1))

    async def purged() -> bool:
        keys = await world.redis_keys()
        return not any("default/llama" in key for key in keys) and await world.members() == -1

    async with world.operator():
        await eventually_async(purged)
        assert await world.members("default/other") == 1


async def test_an_emptied_valkey_is_filled_again(world: Rig) -> None:
    async with world.operator():
        await world.apply(service())
        await eventually_async(lambda: world.has_members(1))
        await world.observer.client.flushall()
        await eventually_async(lambda: world.has_members(1))


async def test_a_valkey_killed_and_started_empty_is_filled_again(world: Rig) -> None:
    async with world.operator():
        await world.apply(service())
        await eventually_async(lambda: world.has_members(1))
        (before,) = await world.objects(POD)
        world.valkey.kill()
        await eventually_async(lambda: world.condition_is("LiveData", ("Unknown", "RedisUnavailable")))
        assert await world.ready()
        world.valkey.start()
        await eventually_async(lambda: world.condition_is("LiveData", ("True", "Fresh")))
        await eventually_async(lambda: world.has_members(1))
        (after,) = await world.objects(POD)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_services_are_brought_up_while_valkey_never_answers(world: Rig) -> None:
    world.valkey.pause()
    try:
        async with world.operator():
            await world.apply(service())
            await eventually_async(world.ready)
            world.valkey.resume()
            await eventually_async(lambda: world.has_members(1))
    finally:
        world.valkey.resume()


async def test_another_operator_with_a_later_term_is_outbid_only_by_a_leader(world: Rig) -> None:
    async with world.operator():
        await world.apply(service())
        await eventually_async(lambda: world.has_members(1))
        other = await world.catalogue.take_term()
        await world.catalogue.publish(other, {})
        await eventually_async(lambda: world.has_members(1))
        stamp = await world.catalogue.stamp()
        assert stamp is not None
        assert stamp[0] > other


async def test_broken_watches_lose_nothing(world: Rig) -> None:
    async with world.operator():
        await world.apply(service("one"))
        await eventually_async(lambda: world.has_members(1, "default/one"))
        world.cluster.drop_watches()
        await world.cluster.delete(INFERENCE_SERVICE, "default", "one")
        await world.apply(service("two"))
        world.cluster.forget_history()
        await eventually_async(lambda: world.has_members(1, "default/two"))
        await eventually_async(lambda: world.has_members(-1, "default/one"))


async def test_a_failing_reconcile_is_tried_again(world: Rig) -> None:
    async with world.operator():
        await world.apply(service())
        await eventually_async(world.ready)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.cluster, "create", _refuse)
            await world.apply(service(replicas=2))
            await eventually(lambda: world.core.queue.backlog.stats.failed > 0)
        await eventually_async(lambda: world.has_members(2))


async def _refuse(*args: object) -> dict[str, object]:
    raise RuntimeError("a bug")


async def test_only_the_watched_namespaces_count(world: Rig) -> None:
    async with world.operator(settings(namespaces=("default",))):
        await world.apply(service(namespace="elsewhere"))
        await world.apply(service())
        await eventually_async(lambda: world.has_members(1))
        assert await world.entry("elsewhere/llama") is None
        assert "status" not in await world.cluster.get(INFERENCE_SERVICE, "elsewhere", "llama")


async def test_the_redis_secret_is_restored_at_the_next_resync(world: Rig) -> None:
    async def restored() -> bool:
        return bool(await world.objects(SECRET))

    async with world.operator(settings(redis_password="secret")):
        await world.apply(service())
        await eventually_async(world.ready)
        await world.cluster.delete(SECRET, "default", "roundhouse-redis")
        await eventually_async(restored)


class DeafSource:
    """Reports nothing."""

    heard = 0.0

    async def run(self) -> None:
        await asyncio.Event().wait()


async def test_watches_that_do_not_report_our_own_writes_end_the_operator(world: Rig) -> None:
    core = OperatorCore(
        world.cluster, world.link, settings(silence_s=0.2), agents=world.agents, make_sources=lambda *_: [DeafSource()]
    )
    await world.apply(service())
    with pytest.raises(SourceEnded, match="write of our own"):
        async with asyncio.timeout(30):
            await core.run()


async def test_agents_of_a_namespace_have_a_user_that_survives_another_valkey(world: Rig) -> None:
    async def logs_in() -> bool:
        try:
            data = (await world.cluster.get(SECRET, "default", "roundhouse-redis"))["data"]
        except NotFound:
            return False
        user, password = (base64.b64decode(data[name]).decode() for name in ("username", "password"))
        theirs = aioredis.Redis.from_url(world.valkey.url, username=user, password=password)
        try:
            return bool(await theirs.set("rh:test:{default/llama}:lease:x", "1", ex=5))
        except RedisError:
            return False
        finally:
            await theirs.aclose()

    async with world.operator(settings(redis_acl=True)):
        await world.apply(service())
        await eventually_async(logs_in)
        world.valkey.kill()
        world.valkey.start()
        await eventually_async(logs_in)
