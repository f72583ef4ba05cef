"""Mean time to first token of routing policies, ours and others', by discrete-event simulation on public traces.

Ours is the gateway's own code (see `roundhouse`); ``ect`` is an oracle that sees the engines' true queues; the rest are
other routers' published rules. Every row is run with several seeds (they spread the arrivals that the trace stamps on
a 3 s grid, draw ties, and shuffle sessions), others than the constants were chosen with; the mean is reported, and how
far the seeds lie apart.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from statistics import fmean

from benchmarks.harness import BenchmarkError, print_result, quick
from benchmarks.routing import dynamo_replay
from benchmarks.routing.oracle import EarliestCompletion
from benchmarks.routing.peers import BoundedLoadHash, Dynamo, LlmD, SglangCacheAware
from benchmarks.routing.policies import LeastRequests, LongestPrefix, RandomOfTwo, RoundRobin
from benchmarks.routing.results import Result, summarise
from benchmarks.routing.roundhouse import Roundhouse
from benchmarks.routing.simulation import Policy, Settings, Simulation
from benchmarks.routing.traces import Request, mooncake, sessions, trace_folder

SYSTEMS: Mapping[str, Callable[[], Policy]] = {
    "roundhouse": Roundhouse,
    "ect": EarliestCompletion,
    "round_robin": RoundRobin,
    "random_of_two": RandomOfTwo,
    "least_requests": LeastRequests,
    "kubeai": BoundedLoadHash,
    "sglang": SglangCacheAware,
    "llm_d_fresh": LlmD,
    "llm_d_5s": lambda: LlmD(5.0),
    "dynamo_1": Dynamo,
    "dynamo_4": lambda: Dynamo(4.0),
}
GATEWAYS: Mapping[str, Callable[[], Policy]] = {
    "roundhouse_5ms": lambda: Roundhouse(gateways=4, delay_s=0.005),
    "roundhouse_50ms": lambda: Roundhouse(gateways=4, delay_s=0.05),
}
LAGGING: Mapping[str, Callable[[], Policy]] = {"roundhouse": lambda: Roundhouse(event_lag_s=0.04)}
EXTREME: Mapping[str, Callable[[], Policy]] = {"longest_prefix": LongestPrefix}
PEERS = frozenset(SYSTEMS) - {"roundhouse", "ect"}

CONVERSATION = "mooncake_conversation_trace.jsonl"
SYNTHETIC = "mooncake_synthetic_trace.jsonl"
SESSIONS = "claude_code_sessions_rle.jsonl"
QUICK_REQUESTS = 2500
TUNING_SEEDS = range(1, 6)
"""What the product's constants were chosen with; never what is reported."""

SEEDS = range(11, 16)


@dataclass(frozen=True)
class Row:
    """One workload and the systems that it is put to."""

    name: str
    trace: str
    systems: Mapping[str, Callable[[], Policy]]
    settings: Settings = field(default_factory=Settings)
    spread_s: float = 3.0

    @property
    def figure(self) -> str:
        return f"{self.name}_mean_ttft_s"

    @property
    def spread_figure(self) -> str:
        return f"{self.name}_mean_ttft_spread_s"


ROWS = {
    row.name: row
    for row in (
        Row("conversation", CONVERSATION, SYSTEMS),
        Row("conversation_4_gateways", CONVERSATION, GATEWAYS),
        Row("nonstream_50", CONVERSATION, SYSTEMS, Settings(stream_share=0.5)),
        Row("event_lag_40ms", CONVERSATION, LAGGING),
        Row("one_replica_2x_slow", CONVERSATION, SYSTEMS, Settings(slow=((0, 2.0),), speed=0.8)),
        Row("sessions", SESSIONS, SYSTEMS),
        Row("synthetic", SYNTHETIC, SYSTEMS, Settings(speed=0.6), spread_s=0.0),
        Row("raw_bursts", CONVERSATION, SYSTEMS, Settings(speed=0.8), spread_s=0.0),
        Row("longest_prefix", CONVERSATION, EXTREME),
    )
}


def main() -> int:
    try:
        trace_folder()
        results = measure(SEEDS[:1] if quick() else SEEDS)
        peer = dynamo_figures()
    except BenchmarkError as error:
        print(f"bench-routing: {error}", file=sys.stderr)
        return 1
    figures: dict[str, dict[str, float]] = {}
    for row in ROWS.values():
        by_system = {name: [r.ttft_mean_s for r in results[row.name, name]] for name in row.systems}
        figures[row.figure] = {name: round(fmean(values), 3) for name, values in by_system.items()}
        figures[row.spread_figure] = {name: round(max(values) - min(values), 3) for name, values in by_system.items()}
    for line in goals(figures):
        print(line)
    figures.update(peer)
    print_result("routing", {"numpy": version("numpy"), "xxhash": version("xxhash")}, figures)
    return 0


def measure(seeds: Sequence[int]) -> dict[tuple[str, str], list[Result]]:
    """All runs, spread over the machine's cores."""
    runs = [(row.name, name, seed) for row in ROWS.values() for name in row.systems for seed in seeds]
    results: dict[tuple[str, str], list[Result]] = {}
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for (row, system, seed), result in zip(runs, pool.map(run, runs), strict=True):
            results.setdefault((row, system), []).append(result)
            print(f"{row:24}{system:16}seed {seed}  {result.row()}", flush=True)
    return results


def run(which: tuple[str, str, int]) -> Result:
    """One row, one system, one seed."""
    name, system, seed = which
    row = ROWS[name]
    requests = load(row.trace, seed, row.spread_s)
    simulation = Simulation(requests, row.systems[system](), replace(row.settings, seed=seed))
    simulation.run()
    return summarise(simulation)


@cache
def load(trace: str, seed: int, spread_s: float) -> list[Request]:
    path = trace_folder() / trace
    if trace == SESSIONS:
        requests = sessions(path, count=75, seed=seed)
    else:
        requests = mooncake(path, seed=seed, spread_s=spread_s)
    return requests[:QUICK_REQUESTS] if quick() else requests


def dynamo_figures() -> dict[str, dict[str, float]]:
    """Of Dynamo's own replay, nothing where it is not installed."""
    program = dynamo_replay.python()
    if program is None:
        print("Dynamo's own replay is left out: `make peers-dynamo` installs it")
        return {}
    return dynamo_replay.replay(program, load(CONVERSATION, SEEDS[0], 3.0), Settings().replicas)


def goals(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What was to be reached, and whether it was."""
    conversation = figures["conversation_mean_ttft_s"]
    ours = conversation["roundhouse"]
    shared = figures["conversation_4_gateways_mean_ttft_s"]["roundhouse_5ms"]
    nonstream = figures["nonstream_50_mean_ttft_s"]["roundhouse"]
    lines = [
        _goal("ours ÷ oracle", ours / conversation["ect"], 1.05),
        _goal("4 gateways ÷ ours", shared / ours, 1.03),
        _goal("50 % not streaming ÷ ours", nonstream / ours, 1.05),
    ]
    for row in ROWS.values():
        values = figures[row.figure]
        peers = {name: value for name, value in values.items() if name in PEERS}
        if peers and "roundhouse" in values:
            best = min(peers, key=lambda name: peers[name])
            lines.append(_goal(f"{row.name}: ours ÷ {best}", values["roundhouse"] / peers[best], 1.02))
    return lines


def _goal(what: str, value: float, most: float) -> str:
    return f"{'met   ' if value <= most else 'MISSED'} {what}: {value:.3f}, goal at most {most}"


if __name__ == "__main__":
    sys.exit(main())
