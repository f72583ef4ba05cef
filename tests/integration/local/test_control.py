"""The control socket, and what it does with requests that nobody should send."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from roundhouse_local.api import MemoryCluster
from roundhouse_local.errors import StartError, UserError
from roundhouse_local.processes import ProcessHost
from roundhouse_local.supervisor.control import Control
from roundhouse_local.supervisor.gateways import Gateways
from roundhouse_local.supervisor.requests import ask
from roundhouse_local.supervisor.settings import UpSettings
from roundhouse_local.supervisor.valkey import ValkeyAccess
from roundhouse_operator.cluster import CONFIG_MAP

from tests.integration.local.node import until


@pytest.fixture
async def cluster(home: Path) -> AsyncIterator[MemoryCluster]:
    """Served on ``home/control.sock``."""
    found = MemoryCluster()
    settings = UpSettings(home=home, models=home, gateways=0)
    gateways = Gateways(ProcessHost(), settings, home, ValkeyAccess("127.0.0.1", "x"), {})

    async def restart() -> None:
        raise StartError("there is none")

    control = Control(found, gateways, {}, home, status=lambda: {"ready": True}, restart_operator=restart)
    serving = asyncio.create_task(control.serve(home / "control.sock"))
    await until((home / "control.sock").exists)
    yield found
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def say(home: Path, line: bytes) -> Any:
    """One raw line; what came back."""
    reader, writer = await asyncio.open_unix_connection(home / "control.sock")
    writer.write(line)
    writer.write_eof()
    data = await reader.read()
    writer.close()
    return json.loads(data)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b"no json\n", b"[]\n", b"1\n", b"{}\n", b'{"verb": "fly"}\n', b'{"verb": "get"}\n', b"\xff\xfe\n",
        b'{"verb": "get", "kind": 1, "namespace": null}\n', b'{"verb": "apply", "objects": [{}]}\n',
        b'{"verb": "apply", "objects": [{"source": "x", "object": {"kind": "Secret", "metadata": 1}}]}\n',
    ],
)  # fmt: skip
async def test_request_that_cannot_be_read_is_refused_and_the_next_one_served(home: Path, line: bytes) -> None:
    assert (await say(home, line))["code"] == 2
    assert (await say(home, b'{"verb": "status"}\n')) == {"result": {"ready": True}}


@pytest.mark.usefixtures("cluster")
async def test_client_that_says_nothing_holds_nobody_up(home: Path) -> None:
    _, silent = await asyncio.open_unix_connection(home / "control.sock")
    assert (await say(home, b'{"verb": "status"}\n')) == {"result": {"ready": True}}
    silent.close()


async def test_refusals_keep_their_kind(home: Path, cluster: MemoryCluster) -> None:
    def request(**fields: Any) -> Any:
        return ask(home / "control.sock", home, **fields)

    with pytest.raises(UserError, match="kind widget is not known"):
        await asyncio.to_thread(request, verb="get", kind="widget", namespace="default")
    with pytest.raises(StartError, match="not found"):
        await asyncio.to_thread(request, verb="get", kind="cm", name="a", namespace="default")
    with pytest.raises(StartError, match="there is none"):
        await asyncio.to_thread(request, verb="restart-operator")


async def test_object_after_a_refused_one_is_applied_all_the_same(home: Path, cluster: MemoryCluster) -> None:
    objects = [
        {"source": name, "object": {"kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}}
        for name in ("NotAName", "good")
    ]
    results = await asyncio.to_thread(ask, home / "control.sock", home, verb="apply", objects=objects)
    assert "NotAName" in results[0]["error"]
    assert results[1] == {"line": "configmap/good created"}
    assert await cluster.get(CONFIG_MAP, "default", "good")


async def test_only_the_user_can_connect(home: Path, cluster: MemoryCluster) -> None:
    assert (home / "control.sock").stat().st_mode & 0o777 == 0o600


def test_run_that_went_without_its_socket_is_told(home: Path) -> None:
    with pytest.raises(StartError, match="no run is up"):
        ask(home / "control.sock", home, verb="status")
