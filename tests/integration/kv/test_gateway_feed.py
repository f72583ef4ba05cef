"""Catalogue, leases and profiles as one gateway follows them, and what it does while Redis is in trouble."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from roundhouse_kv.gateway_feed import GatewayFeed
from roundhouse_kv.records import Profile
from roundhouse_kv.redis_link import RedisLink

from tests.integration.kv.harness import (
    INSTALLATION,
    Agent,
    Operator,
    Valkey,
    depth,
    eventually,
    running,
    service,
    view_of,
)

pytestmark = pytest.mark.integration

CHAIN = list(range(1001, 1101))


@pytest.fixture
def agent(writer: RedisLink) -> Agent:
    return Agent(writer, service())


@asynccontextmanager
async def beating(*agents: Agent) -> AsyncIterator[None]:
    """Agents that refresh their leases, and go on when Redis is away, as real ones do."""

    async def beat() -> None:
        while True:
            await asyncio.gather(*(agent.beat() for agent in agents), return_exceptions=True)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_without_a_catalogue_it_knows_nothing(link: RedisLink) -> None:
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await eventually(lambda: link.healthy)
        assert feed.catalogue is None
        assert feed.catalogue_age is None
        assert feed.view("ns/x") is None
        assert feed.views == {}


async def test_services_come_change_and_go_while_it_runs(
    link: RedisLink, writer: RedisLink, operator: Operator, agent: Agent
) -> None:
    changes: list[int] = []
    feed = GatewayFeed(link, INSTALLATION, 7, on_catalogue=lambda: changes.append(1))
    other = Agent(writer, service("y"), 2)
    async with running(feed):
        await operator.publish(x=[agent])
        await eventually(lambda: feed.view("ns/x") is not None)
        await operator.publish(x=[agent], y=[other])
        await eventually(lambda: feed.view("ns/y") is not None)
        await other.say(CHAIN[:3])
        await other.beat(announce=True)
        await eventually(lambda: depth(feed, other, CHAIN, "y") == 3)
        await operator.publish(y=[other])
        await eventually(lambda: feed.view("ns/x") is None)
        assert depth(feed, other, CHAIN, "y") == 3
        assert feed.catalogue is not None
        assert feed.catalogue.stamp == (1, 3)
        assert feed.catalogue_age is not None
        assert len(changes) == 3


async def test_a_service_made_anew_under_the_same_name_starts_afresh(
    link: RedisLink, operator: Operator, agent: Agent
) -> None:
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await operator.publish(x=[agent])
        await eventually(lambda: feed.view("ns/x") is not None)
        first = view_of(feed)
        anew = {"ns/x": operator.services["ns/x"].__class__(namespace="ns", name="x", uid="new", served_names=("x",))}
        await operator.store.publish(operator.term, anew)
        await eventually(lambda: view_of(feed).entry.uid == "new")
        assert view_of(feed) is not first


async def test_a_service_whose_entry_cannot_be_read_keeps_its_last_view(
    link: RedisLink, operator: Operator, agent: Agent
) -> None:
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await operator.publish(x=[agent])
        await eventually(lambda: feed.view("ns/x") is not None)
        await link.client.hset(INSTALLATION.catalogue, mapping={"ns/x": '{"v":9}', "version": 50})
        await eventually(lambda: feed.catalogue is not None and feed.catalogue.version == 50)
        assert feed.view("ns/x") is not None


async def test_a_catalogue_of_an_unknown_version_is_left_alone(
    link: RedisLink, operator: Operator, agent: Agent
) -> None:
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await operator.publish(x=[agent])
        await eventually(lambda: feed.view("ns/x") is not None)
        await link.client.hset(INSTALLATION.catalogue, mapping={"v": "9", "version": 50})
        await agent.beat(announce=True)
        await eventually(lambda: agent.replica_uid in view_of(feed).leases)
        assert feed.catalogue is not None
        assert feed.catalogue.version == 1


async def test_a_catalogue_message_that_was_lost_is_made_good_by_the_poll(
    link: RedisLink, operator: Operator, agent: Agent
) -> None:
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await operator.publish(x=[agent])
        await eventually(lambda: feed.view("ns/x") is not None)
        feed._channels.handlers[INSTALLATION.catalogue_channel] = lambda _: None
        await operator.publish(x=[])
        await eventually(lambda: view_of(feed).entry.members == ())


async def test_announced_leases_arrive_at_once_and_stored_ones_within_a_poll(
    link: RedisLink, writer: RedisLink, operator: Operator, agent: Agent
) -> None:
    second = Agent(writer, service(), 2)
    await operator.publish(x=[agent, second])
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await eventually(lambda: feed.view("ns/x") is not None)
        leases = view_of(feed).leases
        await second.beat()
        await eventually(lambda: second.replica_uid in leases)
        agent.state = "draining"
        await agent.beat(announce=True)
        await eventually(lambda: agent.replica_uid in leases)
        assert leases[agent.replica_uid].lease.state == "draining"


async def test_leases_nobody_should_believe_change_nothing(
    link: RedisLink, writer: RedisLink, operator: Operator, agent: Agent
) -> None:
    stranger = Agent(writer, service(), 9)
    await operator.publish(x=[agent])
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await eventually(lambda: feed.view("ns/x") is not None)
        await stranger.beat(announce=True)
        await writer.client.publish(service().lease_channel, b"junk")
        await writer.client.publish(service().books_channel, b"junk")
        await writer.client.set(service().lease(agent.replica_uid), b"junk")
        await eventually(lambda: link.settled)
        await agent.beat(announce=True)
        await eventually(lambda: list(view_of(feed).leases) == [agent.replica_uid])


async def test_a_lease_that_stops_is_stale_but_not_gone(link: RedisLink, operator: Operator, agent: Agent) -> None:
    await operator.publish(x=[agent])
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await agent.beat()
        await eventually(lambda: feed.view("ns/x") is not None and agent.replica_uid in view_of(feed).leases)
        seen = view_of(feed).leases
        await agent.leases.remove(agent.replica_uid)
        await eventually(lambda: seen[agent.replica_uid].stale)
        await agent.beat(announce=True)
        await eventually(lambda: not seen[agent.replica_uid].stale)


async def test_profiles_are_read_when_a_lease_names_them(link: RedisLink, operator: Operator, agent: Agent) -> None:
    await operator.publish(x=[agent])
    profile = Profile(text=None, chat_template="x", reason="test")
    digest = await agent.leases.write_profile(profile)
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await eventually(lambda: feed.view("ns/x") is not None)
        lease = agent.lease
        await agent.leases.write(type(lease)(**{**_fields(lease), "profile": digest}), announce=True)
        await eventually(lambda: view_of(feed).profiles == {digest: profile})
        await agent.leases._link.client.set(service().profile("broken"), b"{")
        await agent.leases.write(type(lease)(**{**_fields(lease), "profile": "broken"}), announce=True)
        await eventually(lambda: view_of(feed).unreadable_profiles == {"broken"})
        await agent.beat(announce=True)
        await eventually(lambda: view_of(feed).profiles == {})


def _fields(lease: object) -> dict[str, object]:
    return {name: getattr(lease, name) for name in lease.__struct_fields__}  # type: ignore[attr-defined]


async def test_the_last_catalogue_is_kept_in_a_file(
    valkey: Valkey, quick_link: RedisLink, operator: Operator, agent: Agent, tmp_path: Path
) -> None:
    file = tmp_path / "catalogue.json"
    await operator.publish(x=[agent])
    feed = GatewayFeed(quick_link, INSTALLATION, 7, catalogue_file=file)
    async with running(feed):
        await eventually(file.exists)
    valkey.kill()
    again = GatewayFeed(quick_link, INSTALLATION, 8, catalogue_file=file)
    async with running(again):
        assert view_of(again).entry.members == (agent.member,)
        assert again.catalogue_age is None
        valkey.start()
        await operator.store.take_term()
        await operator.store.publish(5, {})
        await eventually(lambda: again.view("ns/x") is None)


async def test_redis_killed_and_started_again_empty_loses_nothing_for_good(
    valkey: Valkey, quick_link: RedisLink, operator: Operator, agent: Agent
) -> None:
    await operator.publish(x=[agent])
    await agent.say(CHAIN[:5])
    feed = GatewayFeed(quick_link, INSTALLATION, 7)
    async with running(feed), beating(agent):
        await eventually(lambda: depth(feed, agent, CHAIN) == 5)
        await eventually(lambda: agent.replica_uid in view_of(feed).leases)
        valkey.kill()
        await eventually(lambda: not quick_link.healthy)
        assert feed.catalogue is not None
        assert not view_of(feed).leases[agent.replica_uid].stale
        assert view_of(feed).index.match(CHAIN)[agent.pod] == 5
        valkey.start()
        await eventually(lambda: quick_link.settled)
        await operator.store.publish(operator.term, operator.services)
        await agent.snapshot()
        await agent.say(CHAIN[5:7])
        await eventually(lambda: depth(feed, agent, CHAIN) == 7)
        await eventually(lambda: feed.catalogue is not None and feed.catalogue.stamp == (operator.term, 2))
        assert not view_of(feed).leases[agent.replica_uid].stale


async def test_redis_that_accepts_and_never_answers_freezes_what_is_known(
    valkey: Valkey, quick_link: RedisLink, operator: Operator, agent: Agent
) -> None:
    await operator.publish(x=[agent])
    await agent.say(CHAIN[:5])
    await agent.beat()
    feed = GatewayFeed(quick_link, INSTALLATION, 7)
    async with running(feed):
        await eventually(lambda: depth(feed, agent, CHAIN) == 5)
        await eventually(lambda: agent.replica_uid in view_of(feed).leases)
        valkey.pause()
        try:
            await eventually(lambda: not quick_link.healthy)
            heard = view_of(feed).leases[agent.replica_uid].heard_at
            await eventually(lambda: asyncio.get_running_loop().time() - heard > 3.5)
            assert not view_of(feed).leases[agent.replica_uid].stale
            assert depth(feed, agent, CHAIN) == 5
        finally:
            valkey.resume()
        async with beating(agent):
            await eventually(lambda: quick_link.settled)
            await agent.say(CHAIN[5:6])
            await eventually(lambda: depth(feed, agent, CHAIN) == 6)
            assert not view_of(feed).leases[agent.replica_uid].stale


async def test_it_can_be_cancelled_while_redis_never_answers(
    valkey: Valkey, quick_link: RedisLink, operator: Operator, agent: Agent
) -> None:
    await operator.publish(x=[agent])
    feed = GatewayFeed(quick_link, INSTALLATION, 7)
    task = asyncio.create_task(feed.run())
    await eventually(lambda: feed.view("ns/x") is not None)
    valkey.pause()
    try:
        await eventually(lambda: not quick_link.healthy)
        task.cancel()
        _, pending = await asyncio.wait({task}, timeout=10)
        assert not pending
        assert task.cancelled()
    finally:
        valkey.resume()


async def test_an_older_catalogue_of_a_server_that_just_came_up_is_not_taken_at_once(
    valkey: Valkey, quick_link: RedisLink, operator: Operator, agent: Agent
) -> None:
    for _ in range(3):
        await operator.store.take_term()
    await operator.publish(x=[agent])
    feed = GatewayFeed(quick_link, INSTALLATION, 7)
    async with running(feed):
        await eventually(lambda: feed.view("ns/x") is not None)
        valkey.kill()
        await eventually(lambda: not quick_link.healthy)
        valkey.start()
        await operator.store.publish(1, {})  # as a replica that lagged behind would have it
        await eventually(lambda: quick_link.healthy)
        if not quick_link.settled:
            assert feed.view("ns/x") is not None
        await eventually(lambda: feed.view("ns/x") is None)
        assert quick_link.settled
