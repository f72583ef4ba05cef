from typing import Any

import msgspec
import pytest
from roundhouse_kv.demand_store import DemandStore
from roundhouse_kv.operator_feed import OperatorFeed
from roundhouse_kv.records import RECORD_VERSION, Demand, GatewayBeat, encode_record
from roundhouse_kv.redis_link import RedisLink

from tests.integration.kv.harness import INSTALLATION, Agent, Operator, Valkey, eventually, running, service

pytestmark = pytest.mark.integration


class Watched:
    """A feed and what it has called back."""

    def __init__(self, link: RedisLink) -> None:
        self.changes: list[str] = []
        self.republished = 0
        self.feed = OperatorFeed(
            link, INSTALLATION, on_change=self.changes.append, on_republish=self._republish, period_s=0.05
        )

    def _republish(self) -> None:
        self.republished += 1

    async def run(self) -> None:
        await self.feed.run()


@pytest.fixture
def watched(quick_link: RedisLink) -> Watched:
    return Watched(quick_link)


@pytest.fixture
def agent(writer: RedisLink) -> Agent:
    return Agent(writer, service())


async def test_leases_of_followed_services_are_read_and_changes_told(watched: Watched, agent: Agent) -> None:
    feed = watched.feed
    feed.follow("ns/x", [agent.replica_uid, "missing"])
    feed.follow("ns/empty", [])
    await agent.beat()
    async with running(watched):
        await eventually(lambda: agent.replica_uid in feed.leases("ns/x"))
        assert watched.changes == ["ns/x"]
        await eventually(lambda: feed.age is not None)
        agent.seq = 9  # load and key counts are no change of state
        await agent.beat()
        await eventually(lambda: feed.leases("ns/x")[agent.replica_uid].kv_seq == 9)
        assert watched.changes == ["ns/x"]
        agent.state = "draining"
        await agent.beat()
        await eventually(lambda: len(watched.changes) == 2)
        assert feed.leases("ns/x")[agent.replica_uid].state == "draining"
        feed.follow("ns/x", ["missing"])
        assert feed.leases("ns/x") == {}
        feed.forget("ns/x")
        assert feed.leases("ns/x") == {}
        assert feed.leases("ns/unknown") == {}


async def test_a_lease_that_is_gone_is_told_once_redis_is_settled(
    watched: Watched, agent: Agent, quick_link: RedisLink
) -> None:
    feed = watched.feed
    feed.follow("ns/x", [agent.replica_uid])
    await agent.beat()
    async with running(watched):
        await eventually(lambda: agent.replica_uid in feed.leases("ns/x"))
        await agent.leases.remove(agent.replica_uid)
        await eventually(lambda: agent.replica_uid not in feed.leases("ns/x"))
        assert quick_link.settled
        assert watched.changes == ["ns/x", "ns/x"]


async def test_values_stay_while_redis_is_away_and_until_it_has_settled(
    watched: Watched, agent: Agent, valkey: Valkey, quick_link: RedisLink
) -> None:
    feed = watched.feed
    feed.follow("ns/x", [agent.replica_uid])
    await agent.beat()
    async with running(watched):
        await eventually(lambda: agent.replica_uid in feed.leases("ns/x"))
        valkey.kill()
        await eventually(lambda: not quick_link.healthy)
        assert agent.replica_uid in feed.leases("ns/x")
        valkey.start()
        await eventually(lambda: quick_link.healthy)
        assert quick_link.settled or agent.replica_uid in feed.leases("ns/x")
        await eventually(lambda: agent.replica_uid not in feed.leases("ns/x"))
        assert quick_link.settled


async def test_redis_that_never_answers_changes_nothing(
    watched: Watched, agent: Agent, valkey: Valkey, quick_link: RedisLink
) -> None:
    feed = watched.feed
    feed.follow("ns/x", [agent.replica_uid])
    await agent.beat()
    async with running(watched):
        await eventually(lambda: agent.replica_uid in feed.leases("ns/x"))
        valkey.pause()
        try:
            await eventually(lambda: feed.age is not None and feed.age > 1)
            assert agent.replica_uid in feed.leases("ns/x")
            assert watched.changes == ["ns/x"]
        finally:
            valkey.resume()


async def test_demand_and_gateways_are_read(watched: Watched, writer: RedisLink) -> None:
    store, feed = DemandStore(writer, INSTALLATION), watched.feed
    feed.follow("ns/x", [])
    await store.tell(GatewayBeat(incarnation=7), {service(): Demand(held=2)})
    async with running(watched):
        await eventually(lambda: feed.demand("ns/x") == {7: Demand(held=2)})
        assert list(feed.gateways) == [7]
        assert feed.demand("ns/unknown") == {}


async def test_a_catalogue_that_differs_is_to_be_published_again(
    watched: Watched, operator: Operator, writer: RedisLink
) -> None:
    feed = watched.feed
    async with running(watched):
        version = await operator.publish(x=[])
        feed.expect((operator.term, version))
        polled: list[Any] = [feed.age]
        await eventually(lambda: feed.age is not None and feed.age != polled[0])
        assert watched.republished == 0
        await writer.client.flushall()
        await eventually(lambda: watched.republished > 0)
        version = await operator.publish(x=[])
        assert version == 2
        feed.expect((operator.term, version))
        seen = watched.republished
        await writer.client.hset(INSTALLATION.catalogue, "version", 99)
        await eventually(lambda: watched.republished > seen)
        feed.expect(None)


async def test_another_server_with_the_same_stamp_is_to_be_published_again(
    watched: Watched, operator: Operator, valkey: Valkey, quick_link: RedisLink
) -> None:
    feed = watched.feed
    async with running(watched):
        version = await operator.publish(x=[])
        feed.expect((operator.term, version))
        valkey.kill()
        await eventually(lambda: not quick_link.healthy)
        valkey.start()
        await writer_has(operator, version)
        await eventually(lambda: watched.republished > 0)


async def writer_has(operator: Operator, version: int) -> None:
    """The stamp as it was, by another writer's hand."""
    operator.store._version = version - 1
    assert await operator.store.publish(operator.term, {}) == version


async def test_a_lease_of_a_newer_version_is_unreadable_and_one_of_an_older_version_is_read(
    watched: Watched, agent: Agent, quick_link: RedisLink
) -> None:
    feed, name = watched.feed, service().lease(agent.replica_uid)
    lease = msgspec.json.decode(encode_record(agent.lease))
    feed.follow("ns/x", [agent.replica_uid, "missing"])
    await quick_link.client.set(name, msgspec.json.encode({**lease, "v": RECORD_VERSION + 1}))
    async with running(watched):
        await eventually(lambda: feed.unreadable("ns/x") == {agent.replica_uid})
        assert feed.leases("ns/x") == {}
        assert watched.changes == ["ns/x"]
        await quick_link.client.set(name, msgspec.json.encode({**lease, "v": RECORD_VERSION - 1, "other": 1}))
        await eventually(lambda: agent.replica_uid in feed.leases("ns/x"))
        assert feed.unreadable("ns/x") == frozenset()
        await quick_link.client.delete(name)
        await eventually(lambda: feed.leases("ns/x") == {})
        assert feed.unreadable("ns/x") == frozenset()
        feed.forget("ns/x")
        assert feed.unreadable("ns/x") == frozenset()
