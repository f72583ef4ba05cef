"""The main job, end to end: one command serves a real model from two replicas through two gateways.

What is killed here is killed for real, and what a person is told is held against what the replicas answer.
"""

import json
import os
import signal
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

from tests.integration.skeleton.local_run import SERVICE, LocalRun, engine_pid, local_run, processes_of, wait_for

SYSTEM = "You are the night clerk of a railway roundhouse and answer in one short sentence. " * 16
READY_WITHIN_S = 240.0

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("skeleton"), pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def run() -> Iterator[LocalRun]:
    with tempfile.TemporaryDirectory(prefix="rh") as home:
        with local_run(Path(home), SERVICE, ready_within_s=READY_WITHIN_S) as running:
            yield running
        wait_for("the end of every process", lambda: not processes_of(running.home), 20)


def client(run: LocalRun, gateway: int = 0) -> OpenAI:
    return OpenAI(base_url=run.url(gateway), api_key="none", timeout=120, max_retries=0)


def test_curl_of_the_printed_line_answers(run: LocalRun) -> None:
    assert f"curl http://127.0.0.1:{run.ports[0]}/v1/chat/completions" in run.log.read_text()
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    request = urllib.request.Request(
        f"{run.url()}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    answer = json.loads(urllib.request.urlopen(request, timeout=60).read())
    assert answer["choices"][0]["message"]["content"]
    assert answer["model"] == "smollm2"


def test_the_openai_client_streams(run: LocalRun) -> None:
    chunks = list(
        client(run).chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Count to five."}],
            max_tokens=16,
            stream=True,
            temperature=0,
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize("second_gateway", [0, 1])
def test_a_second_turn_finds_its_prefix_through_either_gateway(run: LocalRun, second_gateway: int) -> None:
    messages = [
        {"role": "system", "content": f"{second_gateway} {SYSTEM}"},
        {"role": "user", "content": "Who are you?"},
    ]

    def ask(gateway: int) -> tuple[str, str, int]:
        raw = client(run, gateway).chat.completions.with_raw_response.create(
            model="smollm2", messages=messages, max_tokens=12, temperature=0  # type: ignore[arg-type]
        )  # fmt: skip
        answer = raw.parse()
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details else 0
        return raw.headers["x-roundhouse-replica"], answer.choices[0].message.content or "", cached

    first, text, _ = ask(0)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "What do you do at night?"}]
    second, _, cached = ask(second_gateway)
    assert second == first
    assert cached > 0


def test_a_killed_engine_breaks_only_its_own_streams_and_comes_back(run: LocalRun) -> None:
    watch = ReadinessWatch(run)
    with ThreadPoolExecutor(20) as pool:
        streams = [Stream(run, i) for i in range(20)]
        futures = [pool.submit(stream.read) for stream in streams]
        wait_for("20 streams under way", lambda: all(s.events > 0 or s.done for s in streams), 120)
        replicas = Counter(stream.replica for stream in streams)
        assert len(replicas) == 2, replicas
        addresses = {
            pod["metadata"]["labels"]["roundhouse.dev/replica"]: pod["status"]["podIP"] for pod in run.items("pods")
        }
        victim = next(iter(replicas))
        pid = engine_pid(addresses[victim])
        assert pid is not None
        open_at_kill = {stream.number for stream in streams if not stream.done}
        os.kill(pid, signal.SIGKILL)
        for future in futures:
            future.result(180)
    for stream in streams:
        if stream.replica == victim and stream.number in open_at_kill:
            assert stream.error, f"stream {stream.number} lost its engine and was not told"
            assert not stream.finished
        else:
            assert stream.finished, f"stream {stream.number} on the healthy replica ended early: {stream.error}"
    wait_for("two ready replicas again", lambda: run.ready_replicas() == 2, 120)
    watch.stop()
    assert not watch.lies, watch.lies


def test_bookings_are_back_to_zero(run: LocalRun) -> None:
    def idle() -> bool:
        views = [
            json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port + 1}/admin/replicas", timeout=5).read())
            for port in run.ports
        ]
        return all(replica["requests"] == 0 for v in views for s in v["services"] for replica in s["replicas"])

    wait_for("no booking in any gateway", idle, 20)


def test_a_deleted_service_leaves_no_process_and_no_entry(run: LocalRun) -> None:
    run.cli("delete", "smollm2")
    wait_for("no pod", lambda: not run.items("pods"), 60)
    wait_for("no engine and no agent", lambda: not [p for p in processes_of(run.home) if "roundhouse_torch" in p], 20)
    catalogue = json.loads(
        urllib.request.urlopen(f"http://127.0.0.1:{run.ports[0] + 1}/admin/catalogue", timeout=5).read()
    )
    assert catalogue["services"] == []


class Stream:
    """One streamed chat, read to its end by a thread."""

    def __init__(self, run: LocalRun, number: int) -> None:
        self.number = number
        self.replica = ""
        self.events = 0
        self.done = False
        self.finished = False
        self.error = ""
        self._url = f"{run.url(number % 2)}/chat/completions"

    def read(self) -> None:
        prompt = f"{self.number}: tell a long story about train number {self.number * 7}."
        body = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 160,
            "ignore_eos": True,
            "stream": True,
        }
        request = urllib.request.Request(self._url, json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=180) as answer:
                self.replica = answer.headers["x-roundhouse-replica"]
                for line in answer:
                    self._take(line)
        finally:
            self.done = True

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"data: "):
            return
        data = line[6:].strip()
        if data == b"[DONE]":
            self.finished = True
        elif "error" in (event := json.loads(data)):
            self.error = event["error"]["code"]
        else:
            self.events += 1


class ReadinessWatch:
    """Polls `roundhouse get` each half second, and asks each agent, all the time.

    A *lie* is a look at which more replicas were said to be ready than had answered ``/ready`` in the 2 s before.
    """

    def __init__(self, run: LocalRun) -> None:
        self.lies: list[str] = []
        self._run = run
        self._answered: dict[str, float] = {}
        self._addresses = run.pod_addresses()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=target) for target in (self._ask_agents, self._look)]
        self._ask_once()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask_agents(self) -> None:
        while not self._over.wait(0.2):
            self._ask_once()

    def _ask_once(self) -> None:
        for address in self._addresses:
            try:
                with urllib.request.urlopen(f"http://{address}:9090/ready", timeout=1):
                    self._answered[address] = time.monotonic()
            except OSError:
                continue

    def _look(self) -> None:
        while not self._over.wait(0.5):
            asked = time.monotonic()
            said = self._run.ready_replicas()
            self._addresses = self._run.pod_addresses() or self._addresses
            answered = sum(at > asked - 2.0 for at in self._answered.values())
            if said > answered:
                self.lies.append(f"{said} said to be ready, {answered} answered")
