"""Clients that leave, crowd in or talk nonsense."""

import asyncio
import json
import random

import pytest

from tests.integration.sim.client import CHAT, eventually, gauges, get, idle
from tests.integration.sim.conftest import Sim, StartSim

pytestmark = pytest.mark.integration

ABORTS = 1000


def request(body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(data) + data


async def talk(sim: Sim, data: bytes) -> bytes:
    """Send and read until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_thousand_random_aborts_leave_nothing_in_flight(start_sim: StartSim) -> None:
    sim = start_sim("--speedup", "20", "--kv-tokens", "20000", "--max-num-seqs", "16")
    rng = random.Random(7)

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
        content = f"{rng.randrange(20)} " * rng.randrange(1, 600)
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": rng.randrange(1, 400)}
        writer.write(request(body | {"stream": rng.random() < 0.7, "n": rng.choice([1, 1, 2])}))
        if rng.random() < 0.8:
            read = asyncio.create_task(reader.read(1))
            await asyncio.wait([read], timeout=rng.random() * 0.2)
            read.cancel()
        writer.transport.abort()

    for _ in range(ABORTS // 50):
        await asyncio.gather(*(one() for _ in range(50)))
    await eventually(lambda: idle(sim.url), "nothing in flight, no block in use")
    assert json.loads((await get(f"{sim.url}/load"))[1]) == {"server_load": 0}
    assert (await gauges(sim.url))["sim:lag_seconds"] == 0


async def test_pipelined_requests_are_answered_in_order(sim: Sim) -> None:
    one = request(CHAT | {"max_tokens": 3})
    two = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    three = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    answer = await talk(sim, one + two + three)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.index(b"chat.completion") < answer.index(b'"version"')


async def test_an_upgrade_is_ignored(sim: Sim) -> None:
    upgrade = b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    close = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert (await talk(sim, upgrade + close)).count(b"HTTP/1.1 200") == 2


async def test_a_chunked_body_is_read(sim: Sim) -> None:
    data = json.dumps(CHAT | {"max_tokens": 1}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in data) + b"0\r\n\r\n"
    assert b"HTTP/1.1 200" in await talk(sim, head + body)


async def test_expect_continue_is_answered(sim: Sim) -> None:
    data = json.dumps(CHAT | {"max_tokens": 1}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nconnection: close\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(data))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    writer.write(data)
    assert b"HTTP/1.1 200" in await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /health HTTP/9.9\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, 431),
    ],
)
async def test_broken_requests_are_refused_and_the_connection_closed(sim: Sim, data: bytes, status: int) -> None:
    try:
        answer = await talk(sim, data)
    except ConnectionResetError:
        assert status == 431  # refused before all of it was sent
    else:
        assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert (await get(f"{sim.url}/health"))[0] == 200


async def test_a_body_that_is_too_long_is_refused_before_it_is_stored(sim: Sim) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 90000000\r\n\r\n"
    try:
        answer = await talk(sim, head + b"x" * 90_000_000)
    except ConnectionResetError:
        pass
    else:
        assert answer.startswith(b"HTTP/1.1 413")
    assert (await get(f"{sim.url}/health"))[0] == 200


async def test_malformed_json_is_a_400_and_the_connection_lives_on(sim: Sim) -> None:
    bad = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n{"
    good = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    answer = await talk(sim, bad + good)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"HTTP/1.1 200" in answer
