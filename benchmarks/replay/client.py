"""Sends requests when the trace says, whether earlier ones are answered or not, and notes what came of each."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.replay.slice import prompt_text
from benchmarks.routing.traces import Request

MODEL = "sim"
TIMEOUT_S = 300.0


@dataclass
class Outcome:
    """``sent_at`` in seconds from the run's start; ``target`` that took it; ``error`` empty when all of it came."""

    sent_at: float
    target: str = ""
    ttft_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""


class Client:
    """``targets(number)``: base URLs to try for a request, best first; the next one only when nobody listens."""

    def __init__(self, targets: Callable[[int], Sequence[str]], begin: float) -> None:
        self._targets = targets
        self._begin = begin
        self.outcomes: list[Outcome] = []

    async def run(self, requests: Sequence[Request], speed: float) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
            for number, request in enumerate(requests):
                await asyncio.sleep(self._begin + request.at / speed - time.monotonic())
                outcome = Outcome(time.monotonic() - self._begin)
                self.outcomes.append(outcome)
                group.create_task(self._one(session, number, request, outcome))

    async def _one(self, session: aiohttp.ClientSession, number: int, request: Request, outcome: Outcome) -> None:
        body = {
            "model": MODEL, "prompt": prompt_text(request, number), "max_tokens": request.output_tokens,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        sent = time.monotonic()
        for target in self._targets(number):
            outcome.target = target
            try:
                async with session.post(f"{target}/v1/completions", json=body) as answer:
                    await self._read(answer, sent, outcome)
                return
            except aiohttp.ClientConnectorError as error:
                outcome.error = f"nobody listens: {error}"
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                outcome.error = repr(error)
                return

    async def _read(self, answer: aiohttp.ClientResponse, sent: float, outcome: Outcome) -> None:
        if answer.status != 200:
            outcome.error = f"status {answer.status}: {(await answer.text())[:200]}"
            return
        outcome.error = "the stream ended without [DONE]"
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            if not outcome.ttft_s:
                outcome.ttft_s = time.monotonic() - sent
            if line.startswith(b"data: [DONE]"):
                outcome.error = ""
                return
            if b'"usage"' in line or b'"error"' in line:
                self._note(json.loads(line[6:]), outcome)

    def _note(self, event: dict[str, Any], outcome: Outcome) -> None:
        if "error" in event:
            outcome.error = str(event["error"])[:200]
        elif usage := event.get("usage"):
            outcome.prompt_tokens = usage["prompt_tokens"]
            outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
