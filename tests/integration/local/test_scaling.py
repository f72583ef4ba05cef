"""A service that scales by itself, with real gateways and simulated engines: one, three under load, one again."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.integration.local.local_run import LocalRun, local_run, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("local_up")]

SCALING = """\
apiVersion: roundhouse.dev/v1alpha1
kind: InferenceService
metadata: {name: demo}
spec:
  engine: {name: sim, args: [--step-seconds=0.1, --max-num-seqs=2]}
  scaling: {max: 3, queueDepth: 2, scaleDownDelaySeconds: 6}
  drain: {timeoutSeconds: 20}
"""


@pytest.fixture(scope="module")
def run() -> Iterator[LocalRun]:
    home = Path(tempfile.mkdtemp(prefix="rh"))
    with local_run(home, SCALING) as running:
        yield running
    shutil.rmtree(home, ignore_errors=True)


class Clients:
    """Streams one after the other, until `enough`; ``failures`` tells what was not whole."""

    def __init__(self, run: LocalRun) -> None:
        self._run = run
        self.enough = asyncio.Event()
        self.answers = 0
        self.failures: list[str] = []

    async def go(self, count: int) -> None:
        timeout = aiohttp.ClientTimeout(total=90)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
            await asyncio.gather(*(self._client(http, number) for number in range(count)))

    async def _client(self, http: aiohttp.ClientSession, number: int) -> None:
        turn = 0
        while not self.enough.is_set():
            turn += 1
            content = f"client {number} turn {turn}"
            body = {
                "model": "demo",
                "stream": True,
                "max_tokens": 10,
                "messages": [{"role": "user", "content": content}],
            }
            try:
                async with http.post(f"{self._run.urls[number % 2]}/v1/chat/completions", json=body) as answer:
                    text = await answer.text()
                    if answer.status != 200 or "data: [DONE]" not in text:
                        self.failures.append(f"{answer.status} {text[-200:]}")
            except (aiohttp.ClientError, TimeoutError) as error:
                self.failures.append(repr(error))
            self.answers += 1


def _decided(run: LocalRun) -> list[tuple[int, int]]:
    status = run.objects("infsvc")[0]["status"]
    return [(item["previous"], item["replicas"]) for item in reversed(status["scaling"]["decisions"])]


async def test_up_under_load_and_down_when_idle_without_a_failed_request(run: LocalRun) -> None:
    assert run.ready_replicas() == 1
    clients = Clients(run)
    load = asyncio.create_task(clients.go(24))
    await wait_for(lambda: run.ready_replicas() == 3, lambda: str(run.objects("infsvc")[0]["status"]))
    clients.enough.set()
    await load
    await wait_for(lambda: len(run.objects("pods")) == 1, lambda: str(run.objects("infsvc")[0]["status"]))
    assert clients.failures == []
    assert clients.answers > 24
    decided = _decided(run)
    assert decided[0] == (0, 1)
    assert decided[-2:] == [(3, 2), (2, 1)]
    told = run.cli("explain", "demo").stdout
    assert "Replicas: 1, 1 to 3 by load." in told
    assert "QueueDepth" in told
    assert "2 → 1" in told
