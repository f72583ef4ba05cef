"""The operator's process as it runs on a cluster: kopf, election, probes, signals."""

import asyncio
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, POD, SECRET, NotFound, Obj
from roundhouse_operator.leader import LEASE
from roundhouse_operator.names import SERVICE_LABEL
from roundhouse_operator.redis_password import DEPLOYMENT, redis_password

from tests.integration.kv.harness import eventually_async
from tests.integration.operator.api_server import ApiServer
from tests.integration.operator.rig import Rig, rig
from tests.unit.roundhouse_operator.world import service

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

WITHIN_S = 60.0


class Operator:
    """One process."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as response:
            return response.status, await response.text()

    async def leads(self) -> bool:
        try:
            return "roundhouse_operator_leading 1.0" in (await self.get("/metrics"))[1]
        except aiohttp.ClientError:
            return False


class Cluster:
    def __init__(self, rig: Rig, server: ApiServer, kubeconfig: Path) -> None:
        self.rig = rig
        self.server = server
        self.kubeconfig = kubeconfig

    @asynccontextmanager
    async def operator(self, name: str, *more: str) -> AsyncIterator[Operator]:
        port = _free_port()
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "POD_NAME": name, "POD_NAMESPACE": "default"}
        env["PYTHONPATH"] = os.pathsep.join(["operator", "kv_index", "engines"])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "roundhouse_operator", "--installation", "test"),
            *("--redis-url", self.rig.valkey.url, "--port", str(port), *more),
            env=env,
        )
        try:
            yield Operator(process, port)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with rig() as world, ApiServer(world.cluster).running() as server:
        server.write_kubeconfig(tmp_path / "config")
        yield Cluster(world, server, tmp_path / "config")


async def eventually(check: object) -> None:
    await eventually_async(check, within_s=WITHIN_S)  # type: ignore[arg-type]


async def test_a_service_comes_and_goes_and_the_process_stops_cleanly(cluster: Cluster) -> None:
    world = cluster.rig
    async with cluster.operator("one") as operator:
        await eventually(operator.leads)
        assert await operator.get("/healthz") == (200, "ok")
        await world.apply(service(replicas=2, resources={"gpus": 0}))
        await eventually(lambda: world.has_members(2))
        await eventually(world.ready)
        (first, _) = await world.objects(ENGINE_REPLICA)
        await world.cluster.delete(ENGINE_REPLICA, "default", first["metadata"]["name"])

        async def replaced() -> bool:
            found = {obj["metadata"]["uid"] for obj in await world.objects(ENGINE_REPLICA)}
            return len(found) == 2 and first["metadata"]["uid"] not in found

        await eventually(replaced)
        await world.cluster.delete(INFERENCE_SERVICE, "default", "llama")
        await eventually(world.gone)
        await eventually(lambda: world.has_members(-1))
        operator.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(operator.process.wait(), WITHIN_S) == 0
    assert (await world.cluster.get(LEASE, "default", "roundhouse-operator"))["spec"]["holderIdentity"] == ""


async def test_kopf_leaves_no_traces_in_objects(cluster: Cluster) -> None:
    world = cluster.rig
    async with cluster.operator("one"):
        await world.apply(service(resources={"gpus": 0}))
        await eventually(world.ready)
        for kind in (INFERENCE_SERVICE, ENGINE_REPLICA):
            for obj in await world.objects(kind):
                assert "finalizers" not in obj["metadata"]
                assert "annotations" not in obj["metadata"]


async def test_a_standby_takes_over_when_the_leader_is_killed(cluster: Cluster) -> None:
    world = cluster.rig
    async with cluster.operator("one") as one:
        await eventually(one.leads)
        async with cluster.operator("two") as two:
            await eventually(lambda: _answers(two))
            assert await two.get("/readyz") == (200, "ok")
            assert not await two.leads()
            await world.apply(service(resources={"gpus": 0}))
            await eventually(world.ready)
            one.process.kill()
            await eventually(two.leads)
            await world.apply(service(replicas=2, resources={"gpus": 0}))
            await eventually(lambda: world.has_members(2))


async def _answers(operator: Operator) -> bool:
    try:
        return (await operator.get("/healthz"))[0] == 200
    except aiohttp.ClientError:
        return False


async def test_a_leader_that_lost_its_lease_exits(cluster: Cluster) -> None:
    world = cluster.rig
    async with cluster.operator("one") as one:
        await eventually(one.leads)
        lease = await world.cluster.get(LEASE, "default", "roundhouse-operator")
        stolen = {"metadata": {"name": "roundhouse-operator", "namespace": "default"}, "spec": dict(lease["spec"])}
        stolen["spec"]["holderIdentity"] = "thief"
        await world.cluster.apply(LEASE, stolen)
        assert await asyncio.wait_for(one.process.wait(), WITHIN_S) == 1
    assert (await world.cluster.get(LEASE, "default", "roundhouse-operator"))["spec"]["holderIdentity"] == "thief"


async def test_the_api_server_may_be_away_for_a_while(cluster: Cluster) -> None:
    world = cluster.rig
    async with cluster.operator("one") as one:
        await eventually(one.leads)
        cluster.server.broken = 503
        await asyncio.sleep(1)
        cluster.server.broken = 0
        await world.apply(service(resources={"gpus": 0}))
        await eventually(world.ready)
        assert one.process.returncode is None


async def test_an_api_server_that_throttles_loses_no_update(cluster: Cluster) -> None:
    world, server = cluster.rig, cluster.server
    names = [f"s{number}" for number in range(4)]
    async with cluster.operator("one") as one:
        await eventually(one.leads)
        server.throttling = True
        for name in names:
            await world.apply(service(name, resources={"gpus": 0}))
        for name in names:
            await eventually(partial(world.ready, name))
        assert server.throttled > len(names)
        for name in names:
            await world.cluster.delete(INFERENCE_SERVICE, "default", name)
        await eventually(partial(_none_left, world))
        server.throttling = False
        assert one.process.returncode is None


async def _none_left(world: Rig) -> bool:
    return not await world.objects(POD)


async def test_redis_password_is_made_once_and_owned_by_the_deployment(cluster: Cluster) -> None:
    memory = cluster.rig.cluster
    deployment = await memory.create(DEPLOYMENT, {"metadata": {"name": "op", "namespace": "default"}, "spec": {}})
    first = await redis_password(memory, "default", "pw", "op")
    assert len(first) > 30
    assert await redis_password(memory, "default", "pw", "op") == first
    (owner,) = (await memory.get(SECRET, "default", "pw"))["metadata"]["ownerReferences"]
    assert owner["uid"] == deployment["metadata"]["uid"]
    await redis_password(memory, "default", "other", "nobody")
    assert "ownerReferences" not in (await memory.get(SECRET, "default", "other"))["metadata"]


async def test_a_bad_option_is_told_in_one_line(cluster: Cluster) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "roundhouse_operator", "--installation", "x", "--redis-url", "redis://x"),
        *("--engine-image", "nonsense"),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["operator", "kv_index", "engines"])},
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().startswith("roundhouse-operator: --engine-image 'nonsense'")
    with pytest.raises(NotFound):
        await cluster.rig.cluster.get(LEASE, "default", "roundhouse-operator")


async def test_what_was_deleted_while_its_watch_was_broken_is_noticed_at_once(cluster: Cluster) -> None:
    """By the watch alone: without Redis no lease tells of it, and nothing else of that service changes."""
    world = cluster.rig
    async with cluster.operator("one"):
        for name in ("lost", "other"):
            await world.apply(service(name, resources={"gpus": 0}))
        await eventually(lambda: world.ready("lost"))
        await eventually(lambda: world.ready("other"))
        world.valkey.pause()
        try:
            for name in ("lost", "other"):
                await eventually(partial(world.condition_is, "LiveData", ("Unknown", "RedisUnavailable"), name))
            await eventually(partial(_quiet, cluster.server))
            pods = {pod["metadata"]["labels"][SERVICE_LABEL]: pod for pod in await world.objects(POD)}
            cluster.server.deaf.add(POD)
            name = pods["lost"]["metadata"]["name"]
            await world.cluster.delete(POD, "default", name, grace_seconds=0)
            await _touch(world, pods["other"])
            await asyncio.sleep(0.5)
            cluster.server.deaf.clear()
            await _touch(world, pods["other"])

            async def replaced() -> bool:
                found = [pod["metadata"] for pod in await world.objects(POD)]
                uids = {meta["uid"] for meta in found if meta["labels"][SERVICE_LABEL] == "lost"}
                return bool(uids) and pods["lost"]["metadata"]["uid"] not in uids

            await eventually(replaced)
        finally:
            world.valkey.resume()


async def _quiet(server: ApiServer) -> bool:
    """Nothing but the election for a second."""
    before = len([request for request in server.requests if "/leases/" not in request])
    await asyncio.sleep(1.0)
    return before == len([request for request in server.requests if "/leases/" not in request])


async def _touch(world: Rig, pod: Obj) -> None:
    """A change that says nothing."""
    there = await world.cluster.get(POD, "default", pod["metadata"]["name"])
    there["status"]["message"] = str(time.monotonic())
    await world.cluster.patch_status(POD, "default", pod["metadata"]["name"], there["status"])
