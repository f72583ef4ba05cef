"""Books of several gateways over a real channel."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from redis.asyncio.client import PubSub
from roundhouse_kv.books import Books
from roundhouse_kv.books_wire import BookEntry, BookMessage, BookOp, Kind, decode_message, encode_message
from roundhouse_kv.gateway_feed import GatewayFeed
from roundhouse_kv.redis_link import RedisLink

from tests.integration.kv.harness import (
    INSTALLATION,
    Agent,
    Operator,
    Valkey,
    eventually,
    quick,
    running,
    service,
    view_of,
)

pytestmark = pytest.mark.integration


@pytest.fixture
async def agent(writer: RedisLink, operator: Operator) -> Agent:
    agent = Agent(writer, service())
    await operator.publish(x=[agent])
    return agent


@pytest.fixture
async def gateways(valkey: Valkey, agent: Agent) -> AsyncIterator[list[GatewayFeed]]:
    """Two that have heard of each other."""
    async with AsyncExitStack() as stack:
        feeds = []
        for incarnation in (10, 20):
            link = await stack.enter_async_context(RedisLink(quick(valkey.url)))
            assert await link.wait_healthy(10)
            feeds.append(GatewayFeed(link, INSTALLATION, incarnation))
        await stack.enter_async_context(running(*feeds))
        await eventually(lambda: all(feed.view("ns/x") is not None for feed in feeds))
        first, second = map(books_of, feeds)
        await eventually(lambda: list(first.writers) == [20] and list(second.writers) == [10])
        yield feeds


def books_of(feed: GatewayFeed) -> Books:
    return view_of(feed).books


def pick(feed: GatewayFeed, agent: Agent, request: int, *, expected: tuple[int, ...] = ()) -> None:
    books_of(feed).pick(
        time.monotonic(), request, agent.pod, agent.epoch, prefill_s=100.0, context_tokens=50, streams=True,
        expected=expected,
    )  # fmt: skip


async def next_message(pubsub: PubSub) -> bytes:
    async with asyncio.timeout(10):
        while True:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=1)
            if message is not None:
                data: bytes = message["data"]
                return data


async def test_what_one_books_the_other_sees_until_it_ends(gateways: list[GatewayFeed], agent: Agent) -> None:
    one, two = gateways
    pick(one, agent, 1, expected=(5, 6))
    await eventually(lambda: books_of(two).load(agent.pod, time.monotonic()).unanswered == 1)
    load = books_of(two).load(agent.pod, time.monotonic())
    assert load.prefill_s > 50
    assert load.context_tokens == 50
    assert books_of(two).expected_depth(agent.pod, [5, 6], 0) == 2
    books_of(one).first_event(time.monotonic(), 1, uncached_tokens=10, cached_tokens=2, busy_s=0.5)
    await eventually(lambda: books_of(two).load(agent.pod, time.monotonic()).unanswered == 0)
    assert [sample.busy_s for sample in books_of(two).take_samples()] == [0.5]
    books_of(one).end(time.monotonic(), 1)
    await eventually(lambda: books_of(two).all_open == 0)


async def test_a_storm_of_requests_leaves_nothing(gateways: list[GatewayFeed], agent: Agent) -> None:
    async def request(feed: GatewayFeed, number: int) -> None:
        pick(feed, agent, number)
        await asyncio.sleep(0.001 * (number % 7))
        if number % 3:
            books_of(feed).first_event(time.monotonic(), number)
            await asyncio.sleep(0.001)
        books_of(feed).end(time.monotonic(), number)

    await asyncio.gather(*(request(gateways[n % 2], n) for n in range(600)))
    await eventually(lambda: all(books_of(feed).all_open == 0 for feed in gateways))
    assert all(books_of(feed).load(agent.pod, time.monotonic()).prefill_s == 0 for feed in gateways)


async def test_bookings_of_a_dead_gateway_are_gone_within_three_seconds(
    valkey: Valkey, gateways: list[GatewayFeed], agent: Agent
) -> None:
    async with RedisLink(quick(valkey.url)) as link:
        dying = GatewayFeed(link, INSTALLATION, 30)
        async with running(dying):
            await eventually(lambda: dying.view("ns/x") is not None)
            pick(dying, agent, 300)
            await eventually(lambda: all(books_of(feed).all_open == 1 for feed in gateways))
            await eventually(lambda: 30 in books_of(gateways[0]).writers)
    died = time.monotonic()
    await eventually(lambda: all(books_of(feed).all_open == 0 for feed in gateways))
    assert time.monotonic() - died > 1  # not by any message of the dead one
    assert 30 not in books_of(gateways[0]).writers


async def test_a_lost_message_is_asked_for(gateways: list[GatewayFeed], agent: Agent, writer: RedisLink) -> None:
    """A third writer whose first message never arrived; it answers the question with a table."""
    channel = service().books_channel
    pubsub = writer.client.pubsub()
    await pubsub.subscribe(channel)
    entry = BookEntry(BookOp.PICK, 2, agent.pod, agent.epoch, prefill_us=1000, context_tokens=1)
    await writer.client.publish(channel, encode_message(BookMessage(Kind.DELTA, 30, 2, (entry,))))
    question = encode_message(BookMessage(Kind.ASK, 30, 0))
    while await next_message(pubsub) != question:
        pass
    await pubsub.aclose()  # type: ignore[no-untyped-call]
    lost = BookEntry(BookOp.PICK, 1, agent.pod, agent.epoch, prefill_us=1000, context_tokens=1)
    await writer.client.publish(channel, encode_message(BookMessage(Kind.TABLE, 30, 3, (lost, entry))))
    await eventually(lambda: all(books_of(feed).all_open == 2 for feed in gateways))


async def test_a_question_is_answered_by_a_table(gateways: list[GatewayFeed], agent: Agent, writer: RedisLink) -> None:
    one, _ = gateways
    pick(one, agent, 1)
    late = Books(40)
    pubsub = writer.client.pubsub()
    await pubsub.subscribe(service().books_channel)
    await writer.client.publish(service().books_channel, encode_message(BookMessage(Kind.ASK, 10, 0)))
    while late.all_open == 0:
        late.apply(decode_message(await next_message(pubsub)), 0)
    await pubsub.aclose()  # type: ignore[no-untyped-call]


async def test_an_engine_restart_voids_bookings_everywhere(gateways: list[GatewayFeed], agent: Agent) -> None:
    one, two = gateways
    pick(one, agent, 1)
    await eventually(lambda: books_of(two).all_open == 1)
    agent.restart_engine()
    await agent.beat(announce=True)
    await eventually(lambda: all(books_of(feed).all_open == 0 for feed in gateways))


async def test_after_redis_was_killed_the_books_are_told_again(
    valkey: Valkey, gateways: list[GatewayFeed], agent: Agent
) -> None:
    one, two = gateways
    pick(one, agent, 1)
    await eventually(lambda: books_of(two).all_open == 1)
    valkey.kill()
    pick(one, agent, 2)
    await eventually(lambda: books_of(two).all_open == 0, "silence drops what cannot be known")
    assert books_of(one).own_open == 2
    valkey.start()
    await eventually(lambda: books_of(two).all_open == 2)
    books_of(one).end(time.monotonic(), 1)
    books_of(one).end(time.monotonic(), 2)
    await eventually(lambda: all(books_of(feed).all_open == 0 for feed in gateways))


async def test_picks_go_on_while_redis_never_answers(valkey: Valkey, gateways: list[GatewayFeed], agent: Agent) -> None:
    one, two = gateways
    valkey.pause()
    try:
        for request in range(1, 51):
            pick(one, agent, request)
            await asyncio.sleep(0.02)
        assert books_of(one).load(agent.pod, time.monotonic()).requests == 50
    finally:
        valkey.resume()
    await eventually(lambda: books_of(two).all_open == 50)


async def test_books_of_a_removed_service_are_no_longer_told(
    gateways: list[GatewayFeed], agent: Agent, operator: Operator
) -> None:
    one, _ = gateways
    books = books_of(one)
    await operator.publish()
    await eventually(lambda: one.view("ns/x") is None)
    assert books.wake is None
    books.pick(0, 1, agent.pod, 1, prefill_s=1, context_tokens=1, streams=True)
    books.end(0, 1)
