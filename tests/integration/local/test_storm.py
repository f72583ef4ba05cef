"""A storm of faults under load; afterwards everything is back to zero."""

import asyncio
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.integration.local.local_run import SIM, LocalRun, local_run, wait_for
from tests.integration.local.node import until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("local_up"), pytest.mark.timeout(240)]

ALLOWED = {
    "ended with an error event",  # Its engine was killed.
    "ClientConnectorError", "ServerDisconnectedError", "ClientPayloadError", "ClientOSError",  # Its gateway was.
}  # fmt: skip
QUICK = SIM.replace("0.05", "0.02")


class Load:
    """Clients that go on whatever happens; ``outcomes`` counts how their requests ended."""

    def __init__(self, run: LocalRun, http: aiohttp.ClientSession) -> None:
        self._run, self._http = run, http
        self.outcomes: Counter[str] = Counter()
        self.stopping = False

    async def client(self, number: int) -> None:
        turn = 0
        while not self.stopping:
            turn += 1
            try:
                await self._request(number, turn)
            except (aiohttp.ClientError, TimeoutError) as error:
                self.outcomes[type(error).__name__] += 1
                await asyncio.sleep(0.1)

    async def _request(self, number: int, turn: int) -> None:
        stream = (number + turn) % 3 > 0
        messages = [{"role": "user", "content": f"client {number} " * 100 + f"turn {turn}"}]
        body = {"model": "demo", "messages": messages, "max_tokens": 30, "stream": stream}
        url = self._run.urls[(number + turn) % 2]
        async with self._http.post(f"{url}/v1/chat/completions", json=body) as answer:
            text = await answer.text()
        if answer.status != 200:
            self.outcomes[f"status {answer.status}: {text[:200]}"] += 1
        elif not stream or "[DONE]" in text:
            self.outcomes["done"] += 1
        else:
            assert '"error"' in text.rstrip().splitlines()[-1], text[-300:]
            self.outcomes["ended with an error event"] += 1


def agent_pid(run: LocalRun, replica: str) -> int:
    pod = next(pod for pod in run.objects("pods") if pod["metadata"]["name"] == replica)
    status = next(s for s in pod["status"]["initContainerStatuses"] if s["name"] == "agent")
    return int(status["containerID"].removeprefix("process://"))


async def pause(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def faults(run: LocalRun) -> list[Callable[[], Awaitable[None]]]:
    names = [pod["metadata"]["name"] for pod in run.objects("pods")]

    async def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    return [
        lambda: kill(run.engine_pid(names[0])),
        lambda: pause(run.engine_pid(names[1]), 3),
        lambda: kill(agent_pid(run, names[0])),
        lambda: pause(run.status()["valkey"]["pid"], 3),
        lambda: kill(run.status()["valkey"]["pid"]),
        lambda: kill(run.status()["gateways"][0]["pid"]),
        lambda: asyncio.to_thread(lambda: run.ask(verb="restart-operator")),
        lambda: kill(run.engine_pid(names[1])),
        lambda: kill(agent_pid(run, names[1])),
        lambda: kill(run.status()["gateways"][1]["pid"]),
    ]


async def in_flight(run: LocalRun, http: aiohttp.ClientSession) -> list[float]:
    """Requests and booked seconds of each replica in each gateway's books; one entry per replica that is not zero."""
    found = []
    for admin in run.admins:
        async with http.get(f"{admin}/admin/replicas") as answer:
            replicas = [r for service in (await answer.json())["services"] for r in service["replicas"]]
        found += [r["requests"] + r["prefillSeconds"] for r in replicas if r["requests"] or r["prefillSeconds"]]
        found += [1.0] * (2 - len(replicas))
    return found


async def test_after_a_storm_everything_is_back_to_zero() -> None:
    with tempfile.TemporaryDirectory(prefix="rh") as folder, local_run(Path(folder), QUICK) as run:
        before = Counter(_name(process) for process in run.family)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http:
            load = Load(run, http)
            clients = [asyncio.create_task(load.client(number)) for number in range(12)]
            for fault in faults(run):
                await fault()
                await wait_for(lambda: _all_ready(run), lambda: run.output)
            load.stopping = True
            await asyncio.gather(*clients)
            assert load.outcomes.pop("done") > 0
            assert load.outcomes.keys() <= ALLOWED, load.outcomes
            await until(lambda: _calm(run, http), "no request in flight")
        now = psutil.Process(run.process.pid).children(recursive=True)
        assert Counter(_name(process) for process in now) == before
        run.remember_family()
        run.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(run.wait) == 0
        assert run.left() == []


def _all_ready(run: LocalRun) -> bool:
    return run.ready_replicas() == 2 and all(gateway["ready"] for gateway in run.status()["gateways"])


async def _calm(run: LocalRun, http: aiohttp.ClientSession) -> bool:
    try:
        return not await in_flight(run, http)
    except aiohttp.ClientError:  # A gateway that was just killed is not back yet.
        return False


def _name(process: psutil.Process) -> str:
    command = process.cmdline()
    return next((Path(part).name for part in command[1:] if "roundhouse_" in part or "warden" in part), "valkey")
