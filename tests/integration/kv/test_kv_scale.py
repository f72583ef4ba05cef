"""A big service: 256 pods over a real Valkey, in one gateway's mirror that widens and grows while it is read."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest
from roundhouse_kv.gateway_feed import GatewayFeed
from roundhouse_kv.redis_link import RedisLink

from tests.integration.kv.harness import (
    INSTALLATION,
    Agent,
    Operator,
    Valkey,
    config,
    depth,
    eventually,
    running,
    service,
    view_of,
)  # fmt: skip

pytestmark = pytest.mark.integration

PODS = 256
CHAIN = list(range(1001, 1001 + PODS))
OWN_KEYS = 1000


@pytest.fixture
async def writer(valkey: Valkey) -> AsyncIterator[RedisLink]:
    """All agents in one process, and beside a tracer: an answer may lie unread for long."""
    async with RedisLink(config(valkey.url, timeout_s=60.0)) as link:
        assert await link.wait_healthy(10)
        yield link


async def say_prefix(agent: Agent) -> None:
    """The chain as far as the agent's number, and a thousand keys that nobody else has."""
    own = range(10**9 + agent.number * OWN_KEYS, 10**9 + (agent.number + 1) * OWN_KEYS)
    await agent.say([*CHAIN[: agent.number], *own])
    await agent.beat()


async def say_all(agents: Sequence[Agent]) -> None:
    for start in range(0, len(agents), 16):
        await asyncio.gather(*map(say_prefix, agents[start : start + 16]))


async def beat_on(agents: Sequence[Agent]) -> None:
    """A lease is stale after five seconds, however slow the machine is."""
    while True:
        for agent in agents:
            await agent.beat()
        await asyncio.sleep(0.5)


async def test_256_pods_are_told_apart_while_the_table_grows_and_is_read(
    link: RedisLink, writer: RedisLink, operator: Operator
) -> None:
    agents = [Agent(writer, service(), number) for number in range(1, PODS + 1)]
    await operator.publish(x=agents)
    feed = GatewayFeed(link, INSTALLATION, 7)
    async with running(feed):
        await say_prefix(agents[0])
        await eventually(lambda: depth(feed, agents[0], CHAIN) == 1)
        index = view_of(feed).index
        capacity = index.mirror.capacity
        writing = asyncio.create_task(say_all(agents[1:]))
        while not writing.done():
            found = index.match(CHAIN)
            assert all(found[agent.pod] == agent.number for agent in agents if agent.pod in found)
            assert found[agents[0].pod] == 1
            await asyncio.sleep(0.002)
        await writing
        want = {agent.pod: agent.number for agent in agents}
        beats = asyncio.create_task(beat_on(agents))
        await eventually(lambda: index.match(CHAIN) == want and all(map(index.trusted, want)), within_s=60)
        beats.cancel()
        assert index.mirror.capacity > capacity
        for agent in agents[::2]:
            await agent.say(remove=CHAIN[agent.number // 2 :])
        for agent in agents[1::2]:
            agent.restart_engine()
            await agent.say(CHAIN[:1])
        for number, agent in enumerate(agents):
            want_depth = 1 if number % 2 else agent.number // 2
            await eventually(partial(_holds, feed, agent, want_depth))


def _holds(feed: GatewayFeed, agent: Agent, keys: int) -> bool:
    return depth(feed, agent, CHAIN) == keys
