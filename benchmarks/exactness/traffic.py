"""A few clients at a time send their scripts through both gateways, and each request is judged.

All text is this repository's or made up in `prompts`.
"""

import itertools
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.exactness.judgement import Judgement, Sent, judge
from benchmarks.exactness.prompts import Client, Prompt
from benchmarks.exactness.service import Run
from benchmarks.harness import ROOT, BenchmarkError

WORKERS = 3
TIMEOUT_S = 300.0


def send_all(run: Run, count: int) -> list[Judgement]:
    """``count`` requests by a few workers, each with scripts of its own, gateways by turn."""
    files = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/*.py")])
    text = "\n".join(path.read_text() for path in files)
    numbers = iter(range(count))
    sent: list[Sent] = []
    failures: list[Exception] = []

    def work(seed: int) -> None:
        for script in Client(text, seed).scripts():
            prompt = next(script, None)
            while prompt is not None:
                number = next(numbers, None)
                if failures or number is None:
                    return
                try:
                    answer, done = _send(run, number, prompt)
                except (OSError, urllib.error.HTTPError, ValueError, KeyError) as error:
                    failures.append(error)
                    return
                sent.append(done)
                try:
                    prompt = script.send(answer)
                except StopIteration:
                    prompt = None

    seeds = random.Random(1).sample(range(10**6), WORKERS)
    workers = [threading.Thread(target=work, args=(seed,)) for seed in seeds]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise BenchmarkError(f"a request failed: {failures[0]!r}")
    return [judge(run, each, sent) for each in sorted(sent, key=lambda each: each.began)]


def _send(run: Run, number: int, prompt: Prompt) -> tuple[str, Sent]:
    kind, path, body = prompt
    port = run.ports[number % 2]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        name = reply.headers["x-request-id"]
        answer = "".join(_texts(line for line in reply))
    ended = time.monotonic()
    told = _told(f"http://127.0.0.1:{port + 1}/admin/requests/{name}")
    data = run.renderer.encode(run.renderer.render(body, path))
    return answer, Sent(kind, path, body, data, began, ended, told)


def _texts(lines: Iterator[bytes]) -> Iterator[str]:
    for line in lines:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                yield choice.get("text") or choice.get("delta", {}).get("content") or ""


def _told(url: str) -> Mapping[str, Any]:
    """The gateway writes its record a moment after the last byte."""
    for attempt in itertools.count():
        with urllib.request.urlopen(url, timeout=10) as reply:
            told: Mapping[str, Any] = json.load(reply)
        if told["actual"]["finish"] not in ("", "open") or attempt == 50:
            return told
        time.sleep(0.02)
    raise AssertionError
