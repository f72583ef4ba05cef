from collections.abc import AsyncIterator, Iterator

import pytest
from roundhouse_kv.redis_link import RedisLink

from tests.integration.kv.harness import Operator, Valkey, config, quick

pytestmark = pytest.mark.integration


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.close()


@pytest.fixture
async def link(valkey: Valkey) -> AsyncIterator[RedisLink]:
    """The gateway's link."""
    async with RedisLink(config(valkey.url)) as link:
        assert await link.wait_healthy(10)
        yield link


@pytest.fixture
async def quick_link(valkey: Valkey) -> AsyncIterator[RedisLink]:
    """The gateway's link in tests that take Redis away."""
    async with RedisLink(quick(valkey.url)) as link:
        assert await link.wait_healthy(10)
        yield link


@pytest.fixture
async def writer(valkey: Valkey) -> AsyncIterator[RedisLink]:
    """A link of the other side: agents and operator."""
    async with RedisLink(config(valkey.url)) as link:
        assert await link.wait_healthy(10)
        yield link


@pytest.fixture
def operator(writer: RedisLink) -> Operator:
    return Operator(writer)
