"""What is asked of an engine, over HTTP: streams of completions to prompts that no cache has seen."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from benchmarks.engine.servers import Server
from benchmarks.harness import BenchmarkError

LIMIT_S = 300.0


@dataclass
class Stream:
    """One answer as its client saw it (monotonic seconds)."""

    asked: float
    first: float = 0.0
    last: float = 0.0
    events: int = 0


class Client:
    """Asks one server; prompts are random token ids from ``random``."""

    def __init__(self, server: Server, http: aiohttp.ClientSession, random: random.Random) -> None:
        self._server = server
        self._http = http
        self._random = random

    async def decode(self, streams: int, answer: int, prompt: int = 16) -> float:
        """Tokens per CPU-second from the moment when every stream has its first token."""
        alive = [Stream(time.monotonic()) for _ in range(streams)]
        begun = asyncio.Event()
        tasks = [asyncio.create_task(self._ask(stream, self._prompt(prompt), answer, begun, alive)) for stream in alive]
        await begun.wait()
        before, early = self._server.child.cpu_seconds(), sum(stream.events for stream in alive)
        await asyncio.gather(*tasks)
        return (streams * answer - early) / (self._server.child.cpu_seconds() - before)

    async def prefill(self, prompts: int, length: int) -> float:
        """Prompt tokens per CPU-second, one prompt after the other."""
        before = self._server.child.cpu_seconds()
        for _ in range(prompts):
            await self._ask(Stream(time.monotonic()), self._prompt(length), 1)
        return prompts * length / (self._server.child.cpu_seconds() - before)

    async def poisson(self, requests: int, rate: float, answer: int) -> tuple[float, float]:
        """Median time to first token, and answered tokens per second of the whole, at ``rate`` arrivals per second."""
        streams, tasks = [], []
        began = time.monotonic()
        for _ in range(requests):
            stream = Stream(time.monotonic())
            streams.append(stream)
            tasks.append(asyncio.create_task(self._ask(stream, self._prompt(self._random.randint(64, 192)), answer)))
            await asyncio.sleep(self._random.expovariate(rate))
        await asyncio.gather(*tasks)
        ended = max(stream.last for stream in streams)
        return statistics.median(s.first - s.asked for s in streams), requests * answer / (ended - began)

    def _prompt(self, length: int) -> list[int]:
        return self._random.choices(range(1_000, 40_000), k=length)

    async def _ask(
        self,
        stream: Stream,
        prompt: list[int],
        answer: int,
        begun: asyncio.Event | None = None,
        alive: Sequence[Stream] = (),
    ) -> None:
        body = {"model": "m", "prompt": prompt, "max_tokens": answer, "ignore_eos": True, "temperature": 0}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        usage = 0
        async with asyncio.timeout(LIMIT_S), self._http.post(f"{self._server.url}/v1/completions", json=body) as reply:
            if reply.status != 200:
                raise BenchmarkError(f"{self._server.system} answered {reply.status}: {await reply.text()}")
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("usage"):
                    usage = event["usage"]["completion_tokens"]
                if event["choices"]:
                    stream.last = time.monotonic()
                    stream.first = stream.first or stream.last
                    stream.events += 1
                    if begun is not None and not begun.is_set() and all(other.first for other in alive):
                        begun.set()
        if usage != answer:
            raise BenchmarkError(f"{self._server.system} answered {usage} tokens instead of {answer}")
