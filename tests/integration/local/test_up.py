"""`roundhouse up` with simulated engines, from the outside."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.integration.local.local_run import SIM, LocalRun, Stream, local_run, run_cli, wait_for, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("local_up")]


@pytest.fixture(scope="module")
def run() -> Iterator[LocalRun]:
    """Two replicas and two gateways that all tests of this module share; each leaves it ready."""
    home = Path(tempfile.mkdtemp(prefix="rh"))
    with local_run(home, SIM) as running:
        yield running
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def ready(run: LocalRun) -> None:
    """Whatever the test before has killed is back, and both gateways know it."""

    def look() -> bool:
        return run.ready_replicas() == 2 and all(gateway["ready"] for gateway in run.status()["gateways"])

    wait_until(look, lambda: run.output)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


async def ask_once(http: aiohttp.ClientSession, url: str, content: str = "hi") -> tuple[str, dict[str, object]]:
    """Replica and answer."""
    body = {"model": "demo", "messages": [{"role": "user", "content": content}], "max_tokens": 4}
    async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
        found = await answer.json()
        assert answer.status == 200, found
        return answer.headers["x-roundhouse-replica"], found


async def read_stream(http: aiohttp.ClientSession, url: str, seed: int, tokens: int, into: Stream) -> Stream:
    text = f"conversation {seed} " * 30
    body = {"model": "demo", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": text}]}
    try:
        async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            into.replica = answer.headers["x-roundhouse-replica"]
            async for line in answer.content:
                if line.startswith(b"data: "):
                    into.events.append(line[6:].decode().strip())
    except aiohttp.ClientError:
        into.cut = True
    return into


async def test_printed_curl_line_answers(run: LocalRun) -> None:
    line = next(line.strip() for line in run.output.splitlines() if line.strip().startswith("curl "))
    process = await asyncio.create_subprocess_shell(
        f"{line} -sS", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert json.loads(out)["choices"][0]["message"]["content"]


async def test_second_turn_finds_its_cache_through_either_gateway(run: LocalRun, http: aiohttp.ClientSession) -> None:
    system = {"role": "system", "content": "You drive the engine. " * 60}
    messages = [system, {"role": "user", "content": "first"}]
    replicas, cached = [], []
    for url in (run.urls[0], run.urls[1], run.urls[0]):
        body = {"model": "demo", "messages": messages, "max_tokens": 4}
        async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
            found = await answer.json()
            replicas.append(answer.headers["x-roundhouse-replica"])
        cached.append(found["usage"]["prompt_tokens_details"]["cached_tokens"])
        messages += [found["choices"][0]["message"], {"role": "user", "content": "next"}]
    assert cached[0] == 0
    assert min(cached[1:]) > 1000
    assert len(set(replicas)) == 1


async def test_get_shows_the_columns_of_the_resources(run: LocalRun) -> None:
    lines = run.cli("get").stdout.splitlines()
    assert lines[0].split() == ["NAME", "MODEL", "ENGINE", "READY", "REPLICAS", "URL", "AGE", "REASON"]
    assert lines[1].split()[:4] == ["demo", "sim", "True", "2"]
    pods = run.cli("get", "pods", "-o", "wide").stdout.splitlines()
    assert pods[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]
    assert [line.split()[1] for line in pods[1:]] == ["2/2", "2/2"]
    assert json.loads(run.cli("get", "erep", "-o", "json").stdout)["items"][0]["kind"] == "EngineReplica"


async def test_logs_and_explain_tell_about_a_replica(run: LocalRun, http: aiohttp.ClientSession) -> None:
    replica, _ = await ask_once(http, run.urls[0])
    assert "listening" in run.cli("logs", replica).stdout
    assert "agent_listening" in run.cli("logs", replica, "-c", "agent").stdout
    told = run.cli("explain", replica).stdout
    assert "Ready" in told
    assert replica in told.split("Gateway", 1)[1]
    async with http.post(f"{run.urls[1]}/v1/chat/completions", json={"model": "demo", "messages": []}) as answer:
        request = answer.headers["x-request-id"]
    async with http.post(
        f"{run.urls[1]}/v1/chat/completions",
        json={"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    ) as answer:
        request = answer.headers["x-request-id"]
    assert f"Request {request}" in run.cli("explain", request).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["get", "widgets"], 2, "kind widgets is not known; known are infsvc"),
        (["get", "infsvc", "none"], 1, 'inferenceservices.roundhouse.dev "none" not found'),
        (["logs", "none"], 1, 'pods "none" not found'),
        (["explain", "none"], 2, "no gateway remembers a request"),
        (["delete"], 2, "give -f FILE or a NAME"),
        (["delete", "none"], 1, 'inferenceservices.roundhouse.dev "none" not found'),
        (["apply", "-f", "/no/such.yaml"], 2, "/no/such.yaml: no such file"),
    ],
)
async def test_refused_command_is_one_line_and_an_exit_code(
    run: LocalRun, arguments: list[str], code: int, message: str
) -> None:
    done = run.cli(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_invalid_object_is_refused_by_apply_with_its_field(run: LocalRun) -> None:
    done = run.cli("apply", "-f", "-", text=SIM.replace("replicas: 2", "replicas: -1"))
    assert done.returncode == 1
    assert "spec.replicas" in done.stderr
    assert run.ready_replicas() == 2


async def test_second_run_and_busy_port_are_told(run: LocalRun, home: Path) -> None:
    same = run.cli("up", "--host", run.address)
    assert (same.returncode, "another run is up" in same.stderr) == (1, True)
    busy = run_cli("up", "--host", run.address, home=home)
    assert busy.returncode == 1
    assert "port 8080 (gateway 1)" in busy.stderr
    assert "--port" in busy.stderr


async def test_killed_engine_breaks_only_its_own_streams_and_comes_back(
    run: LocalRun, http: aiohttp.ClientSession
) -> None:
    """And meanwhile `get` never shows more ready replicas than answered /ready within the last two seconds."""
    streams = [Stream() for _ in range(20)]
    watching = asyncio.create_task(watch_ready(run, http))
    reading = [
        asyncio.create_task(read_stream(http, run.urls[i % 2], i, 100, stream)) for i, stream in enumerate(streams)
    ]
    await wait_for(lambda: all(len(stream.events) > 5 for stream in streams), "streams running")
    victim = streams[0].replica
    assert {stream.replica for stream in streams} - {victim}, "all streams on one replica"
    os.kill(run.engine_pid(victim), signal.SIGKILL)
    await asyncio.gather(*reading)
    for stream in streams:
        assert stream.failed if stream.replica == victim else stream.done, stream.events[-2:]
    await wait_for(lambda: run.ready_replicas() == 2, "the replica is ready again")
    watching.cancel()
    samples = await asyncio.gather(watching, return_exceptions=True)
    assert isinstance(samples[0], asyncio.CancelledError), samples


async def watch_ready(run: LocalRun, http: aiohttp.ClientSession) -> None:
    """Until cancelled; fails when more replicas are shown than answer."""
    heard: dict[str, float] = {}

    async def listen(address: str) -> None:
        while True:
            try:
                async with http.get(f"http://{address}:9090/ready", timeout=aiohttp.ClientTimeout(1)) as answer:
                    if answer.status == 200:
                        heard[address] = time.monotonic()
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        listening: set[str] = set()
        while True:
            for pod in await asyncio.to_thread(run.objects, "pods"):
                address = pod.get("status", {}).get("podIP")
                if address and address not in listening:
                    listening.add(address)
                    group.create_task(listen(address))
            await asyncio.sleep(0.5)
            shown = await asyncio.to_thread(run.ready_replicas)
            answered = sum(time.monotonic() - at <= 2.0 for at in heard.values())
            assert shown <= answered, f"{shown} shown as ready, {answered} answer"


async def test_killed_gateway_is_started_again(run: LocalRun, http: aiohttp.ClientSession) -> None:
    before = run.status()["gateways"][0]["pid"]
    os.kill(before, signal.SIGKILL)
    await ask_once(http, run.urls[1])

    def back() -> bool:
        gateway = run.status()["gateways"][0]
        return bool(gateway["pid"] != before and gateway["ready"])

    await wait_for(back, "gateway back")
    await ask_once(http, run.urls[0])


async def test_killed_valkey_comes_back_empty_and_requests_go_on(run: LocalRun, http: aiohttp.ClientSession) -> None:
    before = run.status()["valkey"]["pid"]
    os.kill(before, signal.SIGKILL)
    for url in run.urls * 3:
        await ask_once(http, url)
    await wait_for(lambda: run.status()["valkey"]["pid"] != before, "Valkey back")

    async def fresh() -> bool:
        async with http.get(f"{run.admins[0]}/admin/replicas") as answer:
            found = await answer.json()
        replicas = found["services"][0]["replicas"]
        return len(replicas) == 2 and not any(replica["stale"] for replica in replicas)

    async with asyncio.timeout(30):
        while not await fresh():
            await ask_once(http, run.urls[0])


async def test_operator_that_forgets_everything_restarts_nothing(run: LocalRun, http: aiohttp.ClientSession) -> None:
    pids = [run.engine_pid(pod["metadata"]["name"]) for pod in run.objects("pods")]
    starts = run.status()["operatorStarts"]
    assert run.cli("restart-operator").returncode == 0
    await wait_for(lambda: run.status()["operatorStarts"] == starts + 1, "operator back")
    await ask_once(http, run.urls[0])
    assert run.cli("apply", "-f", "-", text=SIM.replace("demo", "other").replace("replicas: 2", "replicas: 1"))
    await wait_for(lambda: run.ready_replicas("other") == 1, "the new operator works")
    assert run.cli("delete", "other").stdout == "inferenceservice/other deleted\n"
    await wait_for(lambda: len(run.objects("pods")) == 2, "deleted service leaves no pod")
    assert sorted(pids) == sorted(run.engine_pid(pod["metadata"]["name"]) for pod in run.objects("pods"))


async def test_changed_spec_rolls_the_replicas_and_drops_no_request(run: LocalRun, http: aiohttp.ClientSession) -> None:
    old = {pod["metadata"]["name"] for pod in run.objects("pods")}
    assert run.cli("apply", "-f", "-", text=SIM.replace("0.05", "0.04")).stdout == "inferenceservice/demo configured\n"

    def rolled() -> bool:
        status = run.objects("infsvc")[0]["status"]
        current = {erep["metadata"]["name"] for erep in run.objects("erep")}
        return bool(status["updatedReadyReplicas"] == 2 and not current & old)

    rolling = asyncio.create_task(wait_for(rolled, "rolled"))
    while not rolling.done():
        for url in run.urls:
            await ask_once(http, url)
    await rolling
