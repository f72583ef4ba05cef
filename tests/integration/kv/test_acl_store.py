"""Users of one namespace against a real Valkey: their own keys and channels, and nothing else."""

from collections.abc import AsyncIterator

import pytest
from redis.exceptions import NoPermissionError, RedisError
from roundhouse_kv.acl_store import AclStore
from roundhouse_kv.catalogue_store import CatalogueStore
from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.kv_store import KvLogWriter
from roundhouse_kv.names import Installation
from roundhouse_kv.redis_config import RedisConfig
from roundhouse_kv.redis_link import RedisLink

from tests.integration.kv.harness import Agent, Valkey, eventually

pytestmark = pytest.mark.integration

INSTALLATION = Installation("ns[1]/release")


@pytest.fixture
async def users(valkey: Valkey, writer: RedisLink) -> AclStore:
    store = AclStore(writer, INSTALLATION.name)
    await store.allow("one", "secret", "team")
    return store


@pytest.fixture
async def theirs(valkey: Valkey, users: AclStore) -> AsyncIterator[RedisLink]:
    async with RedisLink(RedisConfig(valkey.url, username="one", password="secret")) as link:
        yield link


async def test_an_agent_does_all_of_its_work_as_such_a_user(theirs: RedisLink) -> None:
    keys = INSTALLATION.service("team", "llama")
    agent = Agent(theirs, keys)
    await agent.beat(announce=True)
    await agent.say([1, 2, 3])
    await agent.snapshot()
    assert await agent.leases.read([agent.replica_uid])
    assert not await agent.leases.touch_profile("none")
    assert not await KvLogWriter(theirs, keys).touch("none")
    await agent.leases.remove(agent.replica_uid)


async def test_the_link_hears_of_the_server_as_such_a_user(theirs: RedisLink) -> None:
    assert await theirs.wait_healthy(5)
    await eventually(lambda: theirs.run_id)


@pytest.mark.parametrize(
    "words",
    [
        ("GET", "rh:ns[1]/release:{other/llama}:lease:x"),
        ("SET", "rh:ns[1]/release:{team2/llama}:lease:x", "1"),
        ("HGETALL", "rh:ns[1]/release:catalogue"),
        ("GET", "rh:ns1/release:{team/llama}:lease:x"),
        ("PUBLISH", "rh:ns[1]/release:{other/llama}:books", "x"),
        ("SCAN", "0"),
        ("KEYS", "*"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "requirepass"),
        ("ACL", "LIST"),
        ("EVAL", "return redis.call('GET', KEYS[1])", "1", "rh:ns[1]/release:catalogue"),
    ],
)
async def test_everything_else_is_refused(theirs: RedisLink, words: tuple[str, ...]) -> None:
    with pytest.raises(RedisError) as refused:
        await theirs.client.execute_command(*words)  # type: ignore[no-untyped-call]
    assert isinstance(refused.value, NoPermissionError) or "permission" in str(refused.value).lower()


async def test_a_user_made_anew_can_go_on(users: AclStore, theirs: RedisLink) -> None:
    await users.allow("one", "secret", "team")
    await Agent(theirs, INSTALLATION.service("team", "llama")).beat()


async def test_a_removed_user_is_out(users: AclStore, theirs: RedisLink) -> None:
    await users.remove("one")
    with pytest.raises(RedisUnavailable):
        await Agent(theirs, INSTALLATION.service("team", "llama")).beat()


async def test_whoever_may_not_manage_users_is_told(theirs: RedisLink) -> None:
    with pytest.raises(RedisUnavailable, match="ermission"):
        await AclStore(theirs, INSTALLATION.name).allow("two", "x", "team")


async def test_the_catalogue_of_the_operator_is_out_of_reach(theirs: RedisLink) -> None:
    with pytest.raises(RedisUnavailable):
        await CatalogueStore(theirs, INSTALLATION).take_term()
