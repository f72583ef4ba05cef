import asyncio
import json
import signal

import aiohttp
import pytest

from tests.integration.sim.client import CHAT, events, eventually, gauges, get, idle, in_flight, post
from tests.integration.sim.conftest import Sim, StartSim

pytestmark = pytest.mark.integration

STREAM = CHAT | {"max_tokens": 20, "stream": True}


async def arm(sim: Sim, **fault: object) -> None:
    status, body = await post(f"{sim.url}/sim/faults", fault)
    assert status == 200, body


async def disarm(sim: Sim) -> None:
    async with aiohttp.ClientSession() as session, session.delete(f"{sim.url}/sim/faults") as response:
        assert await response.json() == {"v": 1, "faults": []}


async def raw_request(sim: Sim, body: dict[str, object]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    return reader, writer


async def test_refuse_closes_without_a_byte_and_only_as_often_as_told(sim: Sim) -> None:
    await arm(sim, fault="refuse", count=2)
    for _ in range(2):
        reader, writer = await raw_request(sim, STREAM)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
    assert (await events(f"{sim.url}/v1/chat/completions", CHAT | {"max_tokens": 2}))[-1] == "[DONE]"


async def test_hang_sends_nothing_and_health_still_answers(sim: Sim) -> None:
    await arm(sim, fault="hang")
    reader, writer = await raw_request(sim, STREAM)
    read = asyncio.create_task(reader.read(1))
    assert (await get(f"{sim.url}/health"))[0] == 200
    assert await in_flight(sim.url) == 0
    assert not read.done()
    read.cancel()
    writer.close()


async def test_health_hangs_when_the_fault_names_it(sim: Sim) -> None:
    await arm(sim, fault="hang", path="/health", count=-1)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(get(f"{sim.url}/health"), 0.2)
    await disarm(sim)
    assert (await get(f"{sim.url}/health"))[0] == 200


async def test_silence_sends_headers_and_then_nothing(sim: Sim) -> None:
    await arm(sim, fault="silence")
    reader, writer = await raw_request(sim, STREAM)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"text/event-stream" in head
    read = asyncio.create_task(reader.read(1))
    assert (await get(f"{sim.url}/health"))[0] == 200
    assert not read.done()
    read.cancel()
    writer.close()


@pytest.mark.parametrize("count", [0, 1, 2, 7])
async def test_reset_comes_after_exactly_so_many_events(sim: Sim, count: int) -> None:
    await arm(sim, fault="reset", after_events=count)
    reader, writer = await raw_request(sim, STREAM)
    received = b""
    try:
        while byte := await reader.read(1):
            received += byte
        pytest.fail("the connection was closed, not reset")
    except ConnectionResetError:
        assert received.count(b"data: ") == count
    writer.close()


@pytest.mark.parametrize("count", [0, 1, 5])
async def test_abort_ends_the_stream_with_that_finish_reason(sim: Sim, count: int) -> None:
    await arm(sim, fault="abort", after_events=count)
    data = await events(f"{sim.url}/v1/chat/completions", STREAM)
    assert data[-1] == "[DONE]"
    assert json.loads(data[-2])["choices"][0]["finish_reason"] == "abort"
    assert count + 2 <= len(data) <= count + 3


async def test_abort_of_a_whole_answer_gives_what_there_is(sim: Sim) -> None:
    await arm(sim, fault="abort", after_events=4)
    status, body = await post(f"{sim.url}/v1/chat/completions", CHAT | {"max_tokens": 20})
    choice = body["choices"][0]
    assert (status, choice["finish_reason"], len(choice["message"]["content"])) == (200, "abort", 4)


@pytest.mark.parametrize("count", [0, 3])
async def test_error_event_comes_after_so_many_events_and_then_done(sim: Sim, count: int) -> None:
    await arm(sim, fault="error", after_events=count)
    data = await events(f"{sim.url}/v1/chat/completions", STREAM)
    assert len(data) == count + 2
    assert json.loads(data[-2])["error"]["code"] == 500
    assert data[-1] == "[DONE]"


async def test_error_of_a_whole_answer_is_a_500(sim: Sim) -> None:
    await arm(sim, fault="error", after_events=2)
    status, body = await post(f"{sim.url}/v1/chat/completions", CHAT | {"max_tokens": 20})
    assert (status, body["error"]["type"]) == (500, "InternalServerError")


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_status_answers_with_it(sim: Sim, status: int) -> None:
    await arm(sim, fault="status", status=status)
    answered, body = await post(f"{sim.url}/v1/chat/completions", CHAT)
    assert (answered, body["error"]["code"]) == (status, status)


async def test_slow_lasts_until_disarmed_and_reaches_requests_under_way(sim: Sim) -> None:
    await arm(sim, fault="slow", factor=1e9)
    task = asyncio.create_task(post(f"{sim.url}/v1/chat/completions", CHAT | {"max_tokens": 5}))

    async def running() -> bool:
        return await in_flight(sim.url) == 1

    await eventually(running, "the request runs")
    before = (await gauges(sim.url))["vllm:generation_tokens_total"]
    assert (await gauges(sim.url))["vllm:generation_tokens_total"] == before
    assert not task.done()
    await disarm(sim)
    assert (await task)[0] == 200


async def test_faults_leave_nothing_in_flight(sim: Sim) -> None:
    for kind in ("refuse", "reset", "abort", "error", "status"):
        await arm(sim, fault=kind, after_events=3)
        try:
            await events(f"{sim.url}/v1/chat/completions", STREAM)
        except (aiohttp.ClientError, AssertionError):
            assert kind in ("refuse", "status")
    await eventually(lambda: idle(sim.url), "nothing in flight")


async def test_faults_can_be_listed_and_bad_ones_are_refused(sim: Sim) -> None:
    await arm(sim, fault="hang", count=3)
    _, text = await get(f"{sim.url}/sim/faults")
    listed = json.loads(text)
    assert listed["v"] == 1
    assert [(fault["fault"], fault["count"]) for fault in listed["faults"]] == [("hang", 3)]
    await disarm(sim)
    status, body = await post(f"{sim.url}/sim/faults", {"fault": "explode"})
    assert (status, body["error"]["param"]) == (400, "fault")


async def test_crash_is_at_once(start_sim: StartSim) -> None:
    sim = start_sim()
    with pytest.raises(aiohttp.ClientError):
        await post(f"{sim.url}/sim/faults", {"fault": "crash"})
    assert sim.process.wait(10) == 1


async def test_crash_in_the_middle_of_a_stream(start_sim: StartSim) -> None:
    sim = start_sim("--speedup", "200", "--fault", "crash,after_events=4")
    data = await events(f"{sim.url}/v1/chat/completions", STREAM)
    assert len([item for item in data if item != "broken"]) == 4
    assert data[-1] == "broken"
    assert sim.process.wait(10) == 1


async def test_sigterm_lets_running_streams_finish_and_refuses_new_ones(start_sim: StartSim) -> None:
    sim = start_sim("--shutdown-timeout", "60", "--step-seconds", "0.05")
    task = asyncio.create_task(events(f"{sim.url}/v1/chat/completions", CHAT | {"max_tokens": 30}))

    async def running() -> bool:
        return await in_flight(sim.url) == 1

    await eventually(running, "the stream runs")
    sim.terminate()

    async def refused() -> bool:
        return (await post(f"{sim.url}/v1/chat/completions", CHAT | {"max_tokens": 1}))[0] == 500

    await eventually(refused, "new requests are refused")
    assert (await get(f"{sim.url}/health"))[0] == 200
    data = await task
    assert len(data) == 32
    assert data[-1] == "[DONE]"
    assert sim.process.wait(10) == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("timeout", ["0", "0.3"])
async def test_what_is_left_at_the_deadline_ends_as_aborted(start_sim: StartSim, stream: bool, timeout: str) -> None:
    sim = start_sim("--shutdown-timeout", timeout, "--step-seconds", "0.05")
    url = f"{sim.url}/v1/chat/completions"
    body = CHAT | {"max_tokens": 5000}

    async def reason() -> str:
        if stream:
            data = await events(url, body)
            assert data[-1] == "[DONE]"
            return str(json.loads(data[-2])["choices"][0]["finish_reason"])
        return str((await post(url, body))[1]["choices"][0]["finish_reason"])

    task = asyncio.create_task(reason())

    async def writing() -> bool:
        return (await gauges(sim.url))["vllm:generation_tokens_total"] > 2

    await eventually(writing, "tokens come")
    sim.terminate()
    assert await task == "abort"
    assert sim.process.wait(10) == 0


def test_sigint_ends_it_too(start_sim: StartSim) -> None:
    sim = start_sim()
    sim.process.send_signal(signal.SIGINT)
    assert sim.process.wait(10) == 0
