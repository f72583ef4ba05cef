"""A data plane without sockets: one service, transports that record, engines that answer what a test says."""

import asyncio
import time
from collections.abc import Sequence
from random import Random
from typing import Any, cast
from uuid import UUID

from roundhouse_gateway.client_connection import ClientConnection
from roundhouse_gateway.data_plane import DataPlane
from roundhouse_gateway.fleet import Fleet
from roundhouse_gateway.replica import Replica
from roundhouse_gateway.settings import Settings
from roundhouse_gateway.upstream import UpstreamConnection
from roundhouse_kv.books import Books
from roundhouse_kv.catalogue_store import Catalogue
from roundhouse_kv.index import ServiceIndex
from roundhouse_kv.names import Installation
from roundhouse_kv.records import Lease, Member, Profile, ServiceEntry, TextRules
from roundhouse_kv.view import ServiceView

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROFILE = Profile(
    text=TextRules(alphabet="byteLevel"),
    chat_template=TEMPLATE,
    exact=True,
    parameters=8 * 10**9,
    layers=32,
    hidden_size=4096,
)
INCARNATION = 0xABCDEF0100000001


class FakeTransport:
    """Records what is written; pausing and closing are flags."""

    def __init__(self) -> None:
        self.sent = b""
        self.reading = True
        self.closed = False
        self.half_closed = False

    def write(self, data: bytes) -> None:
        assert not self.half_closed, "written after the end"
        self.sent += data

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeFeed:
    def __init__(self) -> None:
        self.catalogue: Catalogue | None = None
        self.views: dict[str, ServiceView] = {}


def member(number: int, **changes: Any) -> Member:
    fields = {
        "name": f"s-{number}",
        "replica_uid": str(UUID(int=100 + number)),
        "pod_uid": str(UUID(int=200 + number)),
        "address": "127.0.0.1",
        "port": 9000 + number,
        "agent_port": 9090,
        "engine": "vllm",
        "engine_model": "m",
    }
    return Member(**(fields | changes))


def entry(
    members: Sequence[Member], names: tuple[str, ...] = ("m", "alias"), name: str = "s", created: int = 1
) -> ServiceEntry:
    return ServiceEntry(
        namespace="ns", name=name, uid=f"uid-{name}", served_names=names, members=tuple(members), created=created
    )


def lease(of: Member, **changes: Any) -> Lease:
    fields = {
        "replica": of.name,
        "replica_uid": of.replica_uid,
        "pod_uid": of.pod_uid,
        "epoch": 1,
        "source": 1,
        "state": "ready",
        "profile": PROFILE.digest,
        "waiting": 0,
        "running": 0,
        "kv_tokens": 100_000,
        "block_size": 16,
    }
    return Lease(**(fields | changes))


class Engine:
    """The test's side of one upstream connection."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.connection = UpstreamConnection(replica.pool)
        self.transport = FakeTransport()
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    @property
    def busy(self) -> bool:
        return self.connection.busy

    def take(self) -> bytes:
        """What the gateway has sent since the last call."""
        sent, self.transport.sent = self.transport.sent, b""
        return sent

    def say(self, data: bytes) -> None:
        self.connection.data_received(data)

    def answer(self, body: bytes, status: str = "200 OK", kind: str = "application/json") -> None:
        self.say(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    def open_stream(self) -> None:
        self.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    def events(self, *events: bytes, last: bool = False) -> None:
        data = b"".join(events)
        self.say((b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + (b"0\r\n\r\n" if last else b""))

    def die(self) -> None:
        self.connection.connection_lost(ConnectionResetError("reset"))


class Bench:
    """A data plane with ``members``, kept connections to each, and clients made by `connect`."""

    def __init__(self, members: Sequence[Member], settings: Settings | None = None, *, leases: bool = True) -> None:
        self.clock = FakeClock()
        self.feed = FakeFeed()
        self.fleet = Fleet(self.feed, (settings or Settings()).patience, self.clock)
        self.plane = DataPlane(
            settings or Settings(), self.fleet, INCARNATION, clock=self.clock, wall_clock=time.time, random=Random(1)
        )
        service = entry(members)
        keys = Installation("t").service("ns", "s")
        self.view = ServiceView(keys, service, ServiceIndex(), Books(INCARNATION))
        self.feed.catalogue = Catalogue(1, 1, {service.key: service})
        self.feed.views = {service.key: self.view}
        if leases:
            self.view.profiles[PROFILE.digest] = PROFILE
            for each in members:
                self.view.hear(lease(each), self.clock())
        self.refresh()
        self.engines = {r.name: Engine(r) for r in self.service.replicas.values()}

    @property
    def service(self) -> Any:
        return self.fleet.services["ns/s"]

    def refresh(self) -> None:
        self.fleet.refresh(self.clock())
        self.plane.metrics.settle()

    def busy(self) -> Engine:
        """The one engine that has a request."""
        (engine,) = [engine for engine in self.engines.values() if engine.busy]
        return engine

    def connect(self) -> tuple[ClientConnection, FakeTransport]:
        connection, transport = ClientConnection(self.plane), FakeTransport()
        connection.connection_made(cast(asyncio.Transport, transport))
        return connection, transport

    def assert_empty(self) -> None:
        """Nothing in flight, nothing booked."""
        assert not self.plane.exchanges
        assert self.service.in_flight == 0
        assert self.view.books.own_open == 0
        assert all(not replica.exchanges for replica in self.service.replicas.values())


def post(body: bytes, path: str = "/v1/chat/completions", headers: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n".encode() + headers
    return head + b"content-length: %d\r\n\r\n" % len(body) + body
