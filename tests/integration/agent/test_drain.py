"""Drains as the operator and the kubelet ask for them."""

import asyncio
import signal
import time
from typing import Any

import pytest

from tests.integration.agent.replica import Live, ReplicaProcesses, eventually

pytestmark = pytest.mark.integration


async def started(replica: ReplicaProcesses) -> None:
    replica.start_agent()
    replica.start_engine()
    await eventually("ready", replica.ready)


async def in_state(replica: ReplicaProcesses, state: str) -> None:
    async def ask() -> bool:
        return await replica.state() == state

    await eventually(state, ask)


async def running(replica: ReplicaProcesses, count: int) -> None:
    async def ask() -> bool:
        return bool((await replica.get("/status"))[1]["running"] == count)

    await eventually(f"{count} running", ask)


async def leave(request: "asyncio.Task[dict[str, Any]]") -> None:
    """The client goes away, and the engine drops the request."""
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


async def test_an_idle_replica_is_drained_and_stays_ready_for_kubernetes(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        await started(replica)
        status, answer = await replica.post("/drain", {"deadlineMs": int(time.time() * 1000) + 20_000})
        assert (status, answer["state"]) == (200, "draining")
        assert 0 < answer["remainingMs"] <= 20_000
        assert await replica.ready()
        await in_state(replica, "drained")
        lease = await live.lease(replica.uid)
        assert lease is not None
        assert lease.state == "drained"
        assert (await replica.post("/drain"))[1]["state"] == "drained"
        assert (await replica.delete("/drain"))[0] == 409


async def test_a_running_request_is_waited_for(redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        await started(replica)
        request = asyncio.create_task(replica.chat("a long answer", max_tokens=300))
        await running(replica, 1)
        waiting = asyncio.create_task(replica.get("/drain?wait=1"))
        assert (await request)["usage"]["completion_tokens"] == 300
        status, answer = await waiting
        assert (status, answer["state"]) == (200, "drained")


async def test_a_drain_can_be_called_off(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        await started(replica)
        request = asyncio.create_task(replica.chat("never ends by itself", max_tokens=50_000))
        await running(replica, 1)
        await replica.post("/drain")
        assert (await replica.delete("/drain"))[1] == {"v": 1, "state": "ready"}
        await leave(request)
        await running(replica, 0)
        assert await replica.state() == "ready"

        async def published() -> bool:
            lease = await live.lease(replica.uid)
            return lease is not None and lease.state == "ready"

        await eventually("ready again", published)


async def test_only_an_earlier_deadline_counts(redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        await started(replica)
        request = asyncio.create_task(replica.chat("never ends by itself", max_tokens=50_000))
        await running(replica, 1)
        now = int(time.time() * 1000)
        await replica.post("/drain", {"deadlineMs": now + 60_000})
        assert (await replica.post("/drain", {"deadlineMs": now + 90_000}))[1]["remainingMs"] <= 60_000
        assert (await replica.post("/drain", {"deadlineMs": now + 10_000}))[1]["remainingMs"] <= 10_000
        assert (await replica.post("/drain", {"deadlineMs": now - 5}))[1]["remainingMs"] == 0
        assert await replica.state() == "draining"
        await leave(request)
        await in_state(replica, "drained")


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_pre_stop_returns_when_the_engine_is_dead_or_silent(redis_url: str, fate: signal.Signals) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        await started(replica)
        request = asyncio.create_task(replica.chat("never answered", max_tokens=50_000))
        await running(replica, 1)
        assert replica.engine is not None
        replica.engine.send_signal(fate)
        status, _ = await asyncio.wait_for(replica.get("/drain?wait=1"), 15)
        assert status == 200
        await leave(request)


async def test_a_drain_ends_with_the_epoch(redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        await started(replica)
        request = asyncio.create_task(replica.chat("cut off", max_tokens=50_000))
        await running(replica, 1)
        await replica.post("/drain")
        replica.stop(replica.engine)
        replica.start_engine()
        await in_state(replica, "ready")
        await asyncio.gather(request, return_exceptions=True)
