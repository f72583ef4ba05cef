import asyncio
import time

import pytest
from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.redis_link import RedisLink

from tests.integration.kv.harness import Valkey, config, eventually, quick

pytestmark = pytest.mark.integration


async def test_it_is_healthy_at_the_first_echo_and_settled_a_while_later(valkey: Valkey) -> None:
    async with RedisLink(config(valkey.url)) as link:
        assert not link.healthy
        assert await link.wait_healthy(10)
        assert not link.settled
        assert len(link.run_id) == 40
        assert link.generation == 1
        await eventually(lambda: link.settled)


async def test_without_a_server_it_waits_for_one(valkey: Valkey) -> None:
    valkey.kill()
    async with RedisLink(quick(valkey.url)) as link:
        assert not await link.wait_healthy(0.3)
        with pytest.raises(RedisUnavailable):
            await link.ask(link.client.ping())
        valkey.start()
        assert await link.wait_healthy(10)


async def test_a_server_killed_and_started_again_is_another_one(valkey: Valkey, quick_link: RedisLink) -> None:
    await eventually(lambda: quick_link.settled)
    run_id = quick_link.run_id
    valkey.kill()
    await eventually(lambda: not quick_link.healthy)
    valkey.start()
    await eventually(lambda: quick_link.healthy)
    assert quick_link.run_id != run_id
    assert quick_link.generation == 2
    assert not quick_link.settled
    await eventually(lambda: quick_link.settled)
    assert await quick_link.ask(quick_link.client.ping())


async def test_a_server_that_never_answers_is_unhealthy_and_hangs_nobody(valkey: Valkey, quick_link: RedisLink) -> None:
    valkey.pause()
    try:
        await eventually(lambda: not quick_link.healthy)
        started = time.monotonic()
        with pytest.raises(RedisUnavailable):
            await quick_link.ask(quick_link.client.get("x"))
        fresh = RedisLink(quick(valkey.url))
        async with fresh:
            assert not await fresh.wait_healthy(0.2)
        assert time.monotonic() - started < 10
    finally:
        valkey.resume()
    await eventually(lambda: quick_link.healthy)
    assert quick_link.generation == 2
    assert await quick_link.ask(quick_link.client.set("x", "1"))


async def test_a_wrong_password_is_told_and_is_not_healthy(valkey: Valkey, writer: RedisLink) -> None:
    await writer.ask(writer.client.config_set("requirepass", "secret"))
    async with RedisLink(config(valkey.url, password="wrong")) as link:
        assert not await link.wait_healthy(0.3)
        with pytest.raises(RedisUnavailable, match=r"(?i)password|auth") as caught:
            await link.ask(link.client.ping())
        assert "wrong" not in str(caught.value)
    async with RedisLink(config(valkey.url, password="secret")) as link:
        assert await link.wait_healthy(10)


def test_a_config_does_not_show_its_password() -> None:
    assert "secret" not in repr(config("redis://h", username="u", password="secret"))


async def test_a_user_that_may_not_ask_for_the_run_id_is_healthy_without(valkey: Valkey, link: RedisLink) -> None:
    await link.ask(link.client.execute_command("ACL", "SETUSER", "agent", "on", ">pw", "~*", "+ping", "+get"))
    async with RedisLink(config(valkey.url, username="agent", password="pw")) as agent:
        assert await agent.wait_healthy(10)
        assert agent.run_id == ""
    await link.ask(link.client.execute_command("ACL", "SETUSER", "nobody", "on", ">pw", "~*", "+get"))
    async with RedisLink(config(valkey.url, username="nobody", password="pw")) as nobody:
        assert not await nobody.wait_healthy(0.3)


async def test_an_error_of_the_server_is_unavailable_too(link: RedisLink) -> None:
    await link.ask(link.client.set("text", "x"))
    with pytest.raises(RedisUnavailable, match="WRONGTYPE"):
        await link.ask(link.client.lpush("text", "y"))


async def test_a_cancelled_call_leaves_no_answer_for_the_next_one(valkey: Valkey, link: RedisLink) -> None:
    await link.ask(link.client.mset({"a": "1", "b": "2"}))
    for _ in range(30):
        task = asyncio.create_task(link.ask(link.client.get("a")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await link.ask(link.client.get("b")) == b"2"
