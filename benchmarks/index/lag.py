"""How late gateways know: from an engine's event at an agent to the key in each gateway's index, over a real Valkey.

Eight writers send 5,000 keys a second in all, each gathering what comes within 20 ms as agents do. A key is the
monotonic microsecond at which its event happened (that clock is one for all processes of a machine), so a reader
knows the age of each key when it has applied it. Two readers, each a process with the gateway's whole feed.
"""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Any
from uuid import UUID

import numpy as np
from roundhouse_kv.catalogue_store import CatalogueStore
from roundhouse_kv.gateway_feed import GatewayFeed
from roundhouse_kv.kv_store import KvLogWriter
from roundhouse_kv.kv_wire import KvBatch, Op, Section
from roundhouse_kv.lease_store import LeaseStore
from roundhouse_kv.names import Installation, ServiceKeys
from roundhouse_kv.records import Lease, Member, ServiceEntry
from roundhouse_kv.redis_config import RedisConfig
from roundhouse_kv.redis_link import RedisLink

from benchmarks.harness import BenchmarkError, Child, running
from benchmarks.live_state import valkey

INSTALLATION = Installation("bench")
NAMESPACE, SERVICE = "default", "lag"
WRITERS, READERS = 8, 2
EVENTS_PER_S = 5000
WINDOW_S = 0.02
WARM_UP_S = 2.0


def lag_figures(quick: bool) -> dict[str, dict[str, float]]:
    seconds = 5.0 if quick else 30.0
    with ExitStack() as stack:
        url = stack.enter_context(valkey())
        argv: list[Any] = [sys.executable, "-m", "benchmarks.index.lag", url, str(seconds)]
        readers = [stack.enter_context(running(f"reader-{number}", argv)) for number in range(READERS)]
        asyncio.run(_write(url, readers))
        results = {reader.name: _result(reader) for reader in readers}
    return {
        figure: {name: result[figure] for name, result in results.items()}
        for figure in ("lag_p50_ms", "lag_p99_ms", "lag_events_per_s", "lag_reader_cpu_share")
    }


async def _write(url: str, readers: list[Child]) -> None:
    """Until the readers have read enough."""
    keys = INSTALLATION.service(NAMESPACE, SERVICE)
    members = [
        Member(name=f"x-{n}", replica_uid=f"r-{n}", pod_uid=str(uuid.uuid4()), address="127.0.0.1", port=1,
               agent_port=1, engine="sim", engine_model="m")
        for n in range(WRITERS)
    ]  # fmt: skip
    async with RedisLink(RedisConfig(url, timeout_s=5.0)) as link:
        leases = LeaseStore(link, keys)
        for member in members:
            await leases.write(
                Lease(replica=member.name, replica_uid=member.replica_uid, pod_uid=member.pod_uid, epoch=1, source=1,
                      state="ready"),
                announce=True,
            )  # fmt: skip
        catalogue = CatalogueStore(link, INSTALLATION)
        entry = ServiceEntry(
            namespace=NAMESPACE, name=SERVICE, uid=str(uuid.uuid4()), served_names=("m",), members=tuple(members)
        )
        await catalogue.publish(await catalogue.take_term(), {entry.key: entry})
        agents = [asyncio.create_task(_agent(link, keys, UUID(m.pod_uid), n)) for n, m in enumerate(members)]
        await asyncio.gather(*(asyncio.to_thread(reader.process.wait) for reader in readers))
        for agent in agents:
            agent.cancel()
        for outcome in await asyncio.gather(*agents, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                raise BenchmarkError(f"a writer ended: {outcome!r}")


async def _agent(link: RedisLink, keys: ServiceKeys, pod: UUID, number: int) -> None:
    """Events at even distances; their stamps are made unique among writers by their last digit."""
    writer = KvLogWriter(link, keys)
    every_us = 1_000_000 * WRITERS // EVENTS_PER_S
    stamp = time.monotonic_ns() // 1000
    seq = 0
    while True:
        await asyncio.sleep(WINDOW_S)
        now_us = time.monotonic_ns() // 1000
        stamps = np.arange(stamp, now_us, every_us, dtype=np.uint64) // 10 * 10 + number
        stamp += len(stamps) * every_us
        seq += 1
        section = Section(Op.ADD, stamps)
        await writer.append(KvBatch(pod, 1, 1, seq, now_us // 1000, (section,), clear=seq == 1))


class _Reader:
    """Notes the age of every key that the index has taken."""

    def __init__(self) -> None:
        self.ages: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    def watch(self, feed: GatewayFeed) -> None:
        index = feed.views[f"{NAMESPACE}/{SERVICE}"].index
        apply_all = index.apply_all

        def noting(batches: Iterable[KvBatch], now: float) -> None:
            batches = list(batches)
            apply_all(batches, now)
            done = time.monotonic_ns() // 1000
            self.ages += [done - s.keys.astype(np.int64) for batch in batches for s in batch.sections]

        index.apply_all = noting  # type: ignore[method-assign]


async def _read(url: str, seconds: float) -> dict[str, float]:
    reader = _Reader()
    async with RedisLink(RedisConfig(url, timeout_s=5.0)) as link:
        known = asyncio.Event()
        feed = GatewayFeed(link, INSTALLATION, time.monotonic_ns(), on_catalogue=known.set)
        task = asyncio.create_task(feed.run())
        await known.wait()
        reader.watch(feed)
        await asyncio.sleep(WARM_UP_S)
        reader.ages.clear()
        cpu, begin = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        cpu, elapsed = time.process_time() - cpu, time.monotonic() - begin
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    ages = np.concatenate(reader.ages) / 1000
    return {
        "lag_p50_ms": round(float(np.quantile(ages, 0.5)), 1),
        "lag_p99_ms": round(float(np.quantile(ages, 0.99)), 1),
        "lag_events_per_s": round(len(ages) / elapsed),
        "lag_reader_cpu_share": round(cpu / elapsed, 3),
    }


def _result(reader: Child) -> dict[str, float]:
    text = reader.log.read_text().strip()
    try:
        result: dict[str, float] = json.loads(text.splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise BenchmarkError(f"{reader.name} gave no result; its last words:\n{text[-2000:]}") from error
    return result


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_read(sys.argv[1], float(sys.argv[2])))), flush=True)
