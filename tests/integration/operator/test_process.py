"""The operator's process as it runs on a cluster: kopf, election, probes, signals."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, POD, SECRET, NotFound
from roundhouse_operator.leader import LEASE
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
    world = cluster.rig
    async with cluster.operator("one"):
        await world.apply(service(replicas=2, resources={"gpus": 0}))
        await eventually(world.ready)
        (first, second) = await world.objects(ENGINE_REPLICA)
        world.cluster.drop_watches()
        for kind in (ENGINE_REPLICA, POD):
            await world.cluster.delete(kind, "default", first["metadata"]["name"], grace_seconds=0)
        world.cluster.forget_history()

        async def replaced() -> bool:
            found = {obj["metadata"]["uid"] for obj in await world.objects(ENGINE_REPLICA)}
            return len(found) == 2 and first["metadata"]["uid"] not in found and second["metadata"]["uid"] in found

        await eventually(replaced)
