"""What the simulator's tests ask over HTTP."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp

DEADLINE_SECONDS = 20.0
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


async def post(url: str, body: object, **headers: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as response:
        return response.status, await response.json()


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def events(url: str, body: dict[str, object]) -> list[str]:
    """The data of every event of a stream, up to its end or break."""
    data: list[str] = []
    async with aiohttp.ClientSession() as session, session.post(url, json={**body, "stream": True}) as response:
        assert response.status == 200
        try:
            async for line in response.content:
                if line.startswith(b"data: "):
                    data.append(line[6:].strip().decode())
        except aiohttp.ClientError:
            data.append("broken")
    return data


async def gauges(url: str) -> dict[str, float]:
    """Metrics by name; labelled series of one name are summed."""
    values: dict[str, float] = {}
    for line in (await get(f"{url}/metrics"))[1].splitlines():
        if line and not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            values[name] = values.get(name, 0.0) + float(line.rpartition(" ")[2])
    return values


async def eventually(holds: Callable[[], Any], what: str) -> None:
    """Poll until ``holds()`` (a coroutine function) is true."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not await holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


async def in_flight(url: str) -> float:
    values = await gauges(url)
    return values["vllm:num_requests_running"] + values["vllm:num_requests_waiting"]


async def idle(url: str) -> bool:
    values = await gauges(url)
    busy = values["vllm:num_requests_running"] + values["vllm:num_requests_waiting"]
    return busy == 0 and values["vllm:kv_cache_usage_perc"] == 0
