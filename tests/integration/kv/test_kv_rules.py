"""Epoch, source and sequence rules end to end: an agent's writes, Valkey, a gateway's mirror."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from roundhouse_kv.gateway_feed import GatewayFeed
from roundhouse_kv.kv_wire import encode_batch
from roundhouse_kv.redis_link import RedisLink

from tests.integration.kv.harness import (
    INSTALLATION,
    Agent,
    Operator,
    depth,
    eventually,
    eventually_async,
    running,
    service,
    view_of,
)

pytestmark = pytest.mark.integration

CHAIN = list(range(1001, 1101))


@pytest.fixture
async def agent(writer: RedisLink, operator: Operator) -> Agent:
    """In the catalogue, holding the first ten keys."""
    agent = Agent(writer, service())
    await operator.publish(x=[agent])
    await agent.say(CHAIN[:10])
    return agent


@pytest.fixture
async def feed(link: RedisLink, agent: Agent) -> AsyncIterator[GatewayFeed]:
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await eventually(lambda: depth(feed, agent, CHAIN) == 10)
        yield feed


async def test_keys_travel_from_agent_to_mirror(feed: GatewayFeed, agent: Agent) -> None:
    await agent.say(CHAIN[10:20])
    await eventually(lambda: depth(feed, agent, CHAIN) == 20)
    await agent.say(remove=CHAIN[15:20])
    await eventually(lambda: depth(feed, agent, CHAIN) == 15)


async def test_an_engine_restart_in_place_leaves_no_ghosts(feed: GatewayFeed, agent: Agent) -> None:
    view_of(feed).books.pick(0, 1, agent.pod, 1, prefill_s=1, context_tokens=1, streams=True)
    agent.restart_engine()
    await agent.say(CHAIN[:2])
    await eventually(lambda: depth(feed, agent, CHAIN) == 2)
    assert view_of(feed).books.own_open == 0


async def test_an_engine_restart_told_by_the_lease_alone_is_enough(feed: GatewayFeed, agent: Agent) -> None:
    agent.restart_engine()
    await agent.beat(announce=True)
    await eventually(lambda: depth(feed, agent, CHAIN) == 0)
    assert view_of(feed).index.key_count(agent.pod) == 0


async def test_an_agent_restart_replaces_keys_when_its_snapshot_arrives(feed: GatewayFeed, agent: Agent) -> None:
    agent.restart_agent()
    agent.held = set(CHAIN[:4])
    await agent.say(CHAIN[4:6])
    index = view_of(feed).index
    await eventually(lambda: not index.trusted(agent.pod))
    assert index.match(CHAIN)[agent.pod] == 10
    await agent.snapshot()
    await eventually(lambda: depth(feed, agent, CHAIN) == 6)
    await agent.say(CHAIN[6:7])
    await eventually(lambda: depth(feed, agent, CHAIN) == 7)


async def test_the_same_name_recreated_is_another_pod(feed: GatewayFeed, agent: Agent, operator: Operator) -> None:
    old_pod = agent.pod
    agent.recreate()
    await operator.publish(x=[agent])
    await agent.say(CHAIN[:3])
    await eventually(lambda: depth(feed, agent, CHAIN) == 3)
    assert view_of(feed).index.epoch(old_pod) == 0
    assert list(view_of(feed).index.match(CHAIN)) == [agent.pod]


async def test_late_frames_of_a_dead_epoch_are_ignored(feed: GatewayFeed, agent: Agent) -> None:
    late = agent.next_batch(CHAIN[10:50])
    agent.seq -= 1
    agent.restart_engine()
    await agent.say(CHAIN[:2])
    await eventually(lambda: depth(feed, agent, CHAIN) == 2)
    await agent.writer.append(late)
    await agent.say(CHAIN[2:3])
    await eventually(lambda: depth(feed, agent, CHAIN) == 3)


async def test_late_frames_of_a_replaced_agent_are_ignored(feed: GatewayFeed, agent: Agent) -> None:
    late = agent.next_batch(CHAIN[10:50])
    agent.restart_agent()
    agent.held = set(CHAIN[:5])
    await agent.snapshot()
    await agent.say(CHAIN[5:6])
    await eventually(lambda: depth(feed, agent, CHAIN) == 6)
    await agent.writer.append(late)
    await agent.say(CHAIN[6:7])
    await eventually(lambda: depth(feed, agent, CHAIN) == 7)


async def test_duplicates_change_nothing(feed: GatewayFeed, agent: Agent) -> None:
    gone = await agent.say(remove=CHAIN[5:10])
    again = await agent.say(CHAIN[5:8])
    for batch in (gone, again, gone):
        await agent.writer.append(batch)
    await agent.say(CHAIN[8:9])
    await eventually(lambda: depth(feed, agent, CHAIN) == 9)


async def test_a_lone_clear_empties_the_pod(feed: GatewayFeed, agent: Agent) -> None:
    await agent.say(clear=True)
    await eventually(lambda: depth(feed, agent, CHAIN) == 0)
    assert view_of(feed).index.key_count(agent.pod) == 0


async def test_a_lost_batch_is_made_good_by_the_next_snapshot(feed: GatewayFeed, agent: Agent) -> None:
    agent.next_batch(CHAIN[10:12])
    await agent.say(CHAIN[12:15])
    index = view_of(feed).index
    await eventually(lambda: not index.trusted(agent.pod))
    assert index.match(CHAIN)[agent.pod] == 10
    await agent.snapshot()
    await agent.say(CHAIN[15:16])
    await eventually(lambda: depth(feed, agent, CHAIN) == 16)


async def test_a_loss_behind_which_nothing_comes_is_found_by_the_lease(feed: GatewayFeed, agent: Agent) -> None:
    agent.next_batch(CHAIN[10:12])
    await agent.snapshot()
    await agent.beat()
    index = view_of(feed).index
    await eventually(lambda: depth(feed, agent, CHAIN) == 12)
    assert index.trusted(agent.pod)


async def test_another_number_of_keys_in_the_lease_brings_a_reload(feed: GatewayFeed, agent: Agent) -> None:
    agent.held.add(CHAIN[10])  # the agent holds what it never said
    await agent.snapshot()
    await agent.beat(announce=True)
    await eventually(lambda: depth(feed, agent, CHAIN) == 11)


async def test_a_distrusted_pod_is_loaded_again(feed: GatewayFeed, agent: Agent) -> None:
    await agent.snapshot()
    await agent.say(CHAIN[10:11])
    await eventually(lambda: depth(feed, agent, CHAIN) == 11)
    index = view_of(feed).index
    index.distrust(agent.pod, 0)
    assert not index.trusted(agent.pod)
    await eventually(lambda: depth(feed, agent, CHAIN) == 11)


async def test_a_gateway_that_starts_late_loads_snapshots_and_the_log_behind_them(
    link: RedisLink, writer: RedisLink, operator: Operator
) -> None:
    agents = [Agent(writer, service(), number) for number in range(4)]
    await operator.publish(x=agents)
    for n, agent in enumerate(agents):
        await agent.say(CHAIN[:5])
        await agent.say(CHAIN[5 : 8 + n])
        if n < 3:
            await agent.snapshot()
    await writer.client.xtrim(service().kv_log, maxlen=1, approximate=False)
    for n, agent in enumerate(agents):
        await agent.say(CHAIN[8 + n : 9 + n])
        await agent.beat()
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        for n in range(3):
            await eventually(lambda n=n: depth(feed, agents[n], CHAIN) == 9 + n)  # type: ignore[misc]
        assert not view_of(feed).index.trusted(agents[3].pod)  # its first batches are trimmed, and it has no snapshot
        await agents[3].snapshot()
        await eventually(lambda: depth(feed, agents[3], CHAIN) == 12)


async def test_a_new_pod_needs_no_snapshot_while_the_log_has_all_of_it(
    feed: GatewayFeed, agent: Agent, writer: RedisLink, operator: Operator
) -> None:
    second = Agent(writer, service(), 2)
    await second.say(CHAIN[:7])
    await second.say(CHAIN[7:8])
    await operator.publish(x=[agent, second])
    await eventually(lambda: depth(feed, second, CHAIN) == 8)
    await second.say(CHAIN[8:9])
    await eventually(lambda: depth(feed, second, CHAIN) == 9)
    assert depth(feed, agent, CHAIN) == 10


async def test_pods_that_the_catalogue_does_not_name_are_not_indexed(
    feed: GatewayFeed, agent: Agent, writer: RedisLink
) -> None:
    stranger = Agent(writer, service(), 9)
    await stranger.say(CHAIN)
    await agent.say(CHAIN[10:11])
    await eventually(lambda: depth(feed, agent, CHAIN) == 11)
    assert view_of(feed).index.epoch(stranger.pod) == 0


async def test_a_log_trimmed_past_the_reader_is_made_good(feed: GatewayFeed, agent: Agent, writer: RedisLink) -> None:
    """Appended and cut in one transaction, so that the reader has no chance to see it."""
    pipe = writer.client.pipeline(transaction=True)
    for n in range(10, 30):
        pipe.xadd(service().kv_log, {b"b": encode_batch(agent.next_batch(CHAIN[n : n + 1]))})
    pipe.xtrim(service().kv_log, maxlen=2, approximate=False)
    agent.last_id = tuple(map(int, (await pipe.execute())[-2].split(b"-")))
    index = view_of(feed).index
    await eventually(lambda: not index.trusted(agent.pod))
    assert index.match(CHAIN)[agent.pod] == 10
    await agent.snapshot()
    await eventually(lambda: depth(feed, agent, CHAIN) == 30)


async def test_after_redis_was_emptied_the_mirror_stays_and_goes_on(feed: GatewayFeed, agent: Agent) -> None:
    await agent.writer._link.client.flushall()
    await asyncio.sleep(0)
    assert depth(feed, agent, CHAIN) == 10
    await agent.say(CHAIN[10:12])
    await eventually(lambda: depth(feed, agent, CHAIN) == 12)


async def test_a_log_whose_ids_have_gone_backwards_is_read_from_its_start(feed: GatewayFeed, agent: Agent) -> None:
    """A failover to a server whose clock is behind: what it says has smaller ids than what was read."""
    client = agent.writer._link.client
    await client.flushall()
    for n in range(10, 14):
        batch = agent.next_batch(CHAIN[n : n + 1])
        await client.xadd(service().kv_log, {b"b": encode_batch(batch)}, id=f"1000-{n}")
    await agent.beat()
    await eventually(lambda: depth(feed, agent, CHAIN) == 14)
    await client.xadd(service().kv_log, {b"b": encode_batch(agent.next_batch(CHAIN[14:15]))}, id="1000-99")
    await eventually(lambda: depth(feed, agent, CHAIN) == 15)


async def test_the_mirror_grows_while_it_is_read(feed: GatewayFeed, agent: Agent) -> None:
    before = view_of(feed).index.mirror.capacity
    base = 10**9
    for n in range(30):
        await agent.say(range(base + n * 4000, base + (n + 1) * 4000))
        assert depth(feed, agent, CHAIN) == 10
    await eventually(lambda: view_of(feed).index.key_count(agent.pod) == 30 * 4000 + 10)
    assert view_of(feed).index.mirror.capacity > before
    assert depth(feed, agent, CHAIN) == 10
    assert depth(feed, agent, list(range(base, base + 120_000, 999))) == 121


async def test_a_big_snapshot_is_loaded_while_lookups_go_on(feed: GatewayFeed, agent: Agent) -> None:
    agent.held |= set(range(10**9, 10**9 + 200_000))
    agent.seq += 5
    await agent.snapshot()
    await agent.beat()
    index = view_of(feed).index
    while index.key_count(agent.pod) < 200_000:
        assert index.match(CHAIN).get(agent.pod) == 10
        await asyncio.sleep(0.005)
    assert depth(feed, agent, CHAIN) == 10


async def test_a_snapshot_that_does_not_cover_a_loss_is_deleted_so_that_the_agent_writes_a_new_one(
    feed: GatewayFeed, agent: Agent, writer: RedisLink
) -> None:
    await agent.snapshot()
    agent.next_batch(CHAIN[10:12])
    await agent.say(CHAIN[12:15])
    await eventually_async(lambda: _gone(writer, agent))
    assert not view_of(feed).index.trusted(agent.pod)
    await agent.snapshot()
    await eventually(lambda: depth(feed, agent, CHAIN) == 15)
    assert not await _gone(writer, agent)


async def _gone(link: RedisLink, agent: Agent) -> bool:
    return not await link.client.exists(service().kv_snapshot(str(agent.pod)))
