"""A gateway's copy of the index, in one process: bytes per key, look-ups, writes, and a load from nothing."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median
from uuid import UUID

import numpy as np
from roundhouse_kv.index import ServiceIndex
from roundhouse_kv.kv_wire import KvBatch, KvSnapshot, Op, Section, decode_snapshot, encode_snapshot

CHAIN = 128
REPLICA_KEYS = 50_000
FILLED = 1_000_000
BATCH_KEYS = 64
EPOCH = SOURCE = 1

KeyArray = np.ndarray[tuple[int], np.dtype[np.uint64]]


def copy_figures(quick: bool) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(1)
    usual, worst, memory = {}, {}, {}
    for replicas in (1, 8, 64):
        index, usual_chains, worst_chains = filled(replicas, rng)
        usual[f"{replicas}_replicas"] = round(look_up_us(index, usual_chains, quick), 2)
        worst[f"{replicas}_replicas"] = round(look_up_us(index, worst_chains, quick), 2)
        memory[f"{replicas}_replicas"] = round(index.mirror.nbytes / FILLED, 1)
    adds, removes = writes_per_s(rng, 200_000 if quick else 2_000_000)
    load_s, load_bytes = cold_load(8 if quick else 64, rng)
    memory["after_cold_load"] = round(load_bytes, 1)
    return {
        "bytes_per_key": memory,
        "match_usual_us": usual,
        "match_worst_us": worst,
        "adds_per_s": {"bulk": round(adds)},
        "removes_per_s": {"bulk": round(removes)},
        "cold_load_cpu_s": {"64_x_50k": round(load_s, 2)},
    }


def filled(replicas: int, rng: np.random.Generator) -> tuple[ServiceIndex, list[list[int]], list[list[int]]]:
    """An index of a million keys, usual chains and worst ones. Usual: everybody holds the first eighth (the system
    prompt), one holds all or half; or nobody knows it. Worst: every replica's prefix ends somewhere else."""
    held: list[list[KeyArray]] = [[] for _ in range(replicas)]
    usual, worst = [], []
    for number in range(256):
        chain = _keys(rng, CHAIN)
        usual.append(chain.tolist())
        if number % 4 == 3:
            continue
        for each in held:
            each.append(chain[: CHAIN // 8])
        held[number % replicas].append(chain[CHAIN // 8 : CHAIN // (1 + number % 2)])
    for _ in range(64):
        chain = _keys(rng, CHAIN)
        worst.append(chain.tolist())
        for number, depth in enumerate(rng.permutation(np.linspace(1, CHAIN, replicas, dtype=int))):
            held[number].append(chain[:depth])
    distinct = len(np.unique(np.concatenate([part for each in held for part in each])))
    filler = iter(np.array_split(_keys(rng, FILLED - distinct), replicas))
    index = ServiceIndex(FILLED)
    for number, parts in enumerate(held):
        index.load(_snapshot(number, np.unique(np.concatenate([*parts, next(filler)]))), 0.0)
    return index, usual, worst


def look_up_us(index: ServiceIndex, chains: Sequence[list[int]], quick: bool) -> float:
    """Median over rounds of the mean of all ``chains``."""

    def round_() -> None:
        for chain in chains:
            index.depths(chain)

    return median(_cpu_s(round_) for _ in range(5 if quick else 25)) / len(chains) * 1e6


def writes_per_s(rng: np.random.Generator, count: int) -> tuple[float, float]:
    """Adds and removes of ``count`` keys as a reader sees them under load: 32 batches of 64 keys a read, 8 pods."""
    index = ServiceIndex(count)
    keys = _keys(rng, count)
    pods = [UUID(int=number + 1) for number in range(8)]
    seqs = [0] * len(pods)

    def batches(op: Op) -> Iterator[KvBatch]:
        for at in range(0, count, BATCH_KEYS):
            pod = at // BATCH_KEYS % len(pods)
            seqs[pod] += 1
            section = Section(op, keys[at : at + BATCH_KEYS])
            yield KvBatch(pods[pod], EPOCH, SOURCE, seqs[pod], 0, (section,), clear=seqs[pod] == 1)

    def write(op: Op) -> Callable[[], None]:
        source = batches(op)

        def all_() -> None:
            while part := list(islice(source, 32)):
                index.apply_all(part, 0.0)

        return all_

    added = _cpu_s(write(Op.ADD))
    removed = _cpu_s(write(Op.REMOVE))
    return count / added, count / removed


def cold_load(replicas: int, rng: np.random.Generator) -> tuple[float, float]:
    """CPU seconds to read and take 64 snapshots of 50,000 keys (measured with ``replicas`` of them), bytes per key."""
    snapshots = [encode_snapshot(_snapshot(number, _keys(rng, REPLICA_KEYS))) for number in range(replicas)]
    index = ServiceIndex(replicas * REPLICA_KEYS)

    def load() -> None:
        for data in snapshots:
            index.load(decode_snapshot(data), 0.0)

    return _cpu_s(load) * 64 / replicas, index.mirror.nbytes / (replicas * REPLICA_KEYS)


def _snapshot(number: int, keys: KeyArray) -> KvSnapshot:
    return KvSnapshot(UUID(int=number + 1), EPOCH, SOURCE, 1, 0, 0, keys)


def _keys(rng: np.random.Generator, count: int) -> KeyArray:
    return rng.integers(1, 2**63, count, dtype=np.uint64)


def _cpu_s(action: Callable[[], None]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin
