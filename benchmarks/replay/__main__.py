"""Live: a quarter of an hour of the conversation trace, three times as fast, through two real gateways and eight
simulated engines with real agents and a real Valkey; beside it, at the same time, round robin over eight engines alike.

Arrivals and engines run three times as fast as the trace, so the queues are the trace's own. In the middle one gateway
is killed and Valkey is emptied. The same requests go through the discrete-event simulation, which knows no fault: what
is found cached must be the same but for the seconds after it.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version

from roundhouse_sim.scheduler import Limits

from benchmarks.harness import BenchmarkError, free_port, idle_share, print_result, quick, running, wait_for_http
from benchmarks.local_run import LocalRun, local_run
from benchmarks.replay.client import MODEL, Client, Outcome
from benchmarks.replay.judgement import Hits, back_after_s, hit_ratio, live_hits, ttft
from benchmarks.replay.slice import cut
from benchmarks.routing.roundhouse import Roundhouse
from benchmarks.routing.simulation import Settings, Simulation
from benchmarks.routing.traces import BLOCK_TOKENS, Request, mooncake, trace_folder

TRACE = "mooncake_conversation_trace.jsonl"
SEED = 11
START_S, SECONDS, QUICK_SECONDS = 900.0, 900.0, 180.0
SPEED = 3.0
REPLICAS = 8
LEAST_IDLE = 0.15
IDLE_WINDOW_S = 10.0
ENGINE_ARGS = (
    *("--block-size", str(BLOCK_TOKENS), "--kv-tokens", str(Settings().kv_tokens), "--speedup", f"{SPEED:g}"),
    *("--stream-interval", "32", "--max-num-seqs", str(Limits().sequences)),
)
MANIFEST = f"""\
apiVersion: roundhouse.dev/v1alpha1
kind: InferenceService
metadata: {{name: {MODEL}}}
spec:
  engine: {{name: sim, args: {list(ENGINE_ARGS)}}}
  resources: {{gpus: 0}}
  replicas: {REPLICAS}
"""


@dataclass(frozen=True)
class Results:
    """``fault_at`` in seconds from the start; ``killed``: the URL of the gateway that was; ``idle``: least share."""

    ours: Sequence[Outcome]
    others: Sequence[Outcome]
    simulated: Sequence[Hits]
    fault_at: float
    killed: str
    idle: float


def main() -> int:
    try:
        seconds = QUICK_SECONDS if quick() else SECONDS
        requests = cut(mooncake(trace_folder() / TRACE, seed=SEED), START_S, seconds)
        figures = figures_of(measure(requests, seconds / SPEED / 2))
        print(figures)
        for line in goals(figures):
            print(line)
    except BenchmarkError as error:
        print(f"bench-replay: {error}", file=sys.stderr)
        return 1
    print_result("replay", {"aiohttp": version("aiohttp")}, figures)
    return 0


def measure(requests: Sequence[Request], fault_at: float) -> Results:
    simulation = Simulation(requests, Roundhouse(gateways=2), Settings(replicas=REPLICAS))
    simulation.run()
    simulated = [Hits(each.request.at / SPEED, each.cached_tokens, each.prompt_tokens) for each in simulation.flights]
    with ExitStack() as stack:
        engines = [stack.enter_context(engine(number)) for number in range(REPLICAS)]
        run = stack.enter_context(local_run(MANIFEST))
        return asyncio.run(_replay(run, engines, requests, simulated, fault_at))


async def _replay(
    run: LocalRun, engines: Sequence[str], requests: Sequence[Request], simulated: Sequence[Hits], fault_at: float
) -> Results:
    begin = time.monotonic() + 1.0
    gateways = [f"http://127.0.0.1:{port}" for port in run.ports]
    ours = Client(lambda number: [gateways[number % 2], gateways[1 - number % 2]], begin)
    others = Client(lambda number: [engines[number % REPLICAS]], begin)
    over = asyncio.Event()
    watch = asyncio.create_task(_least_idle(over))
    async with asyncio.TaskGroup() as group:
        group.create_task(_break(run, begin + fault_at))
        for client in (ours, others):
            group.create_task(client.run(requests, SPEED))
    over.set()
    return Results(ours.outcomes, others.outcomes, simulated, fault_at, gateways[0], await watch)


async def _break(run: LocalRun, at: float) -> None:
    """Kill the first gateway and empty Valkey at the monotonic time ``at``."""
    pid = (await asyncio.to_thread(run.status))["gateways"][0]["pid"]
    valkey = await asyncio.to_thread(run.valkey)
    await asyncio.sleep(at - time.monotonic())
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(valkey.flushall)


async def _least_idle(over: asyncio.Event) -> float:
    """Least share of the machine that was idle in any window while the run went on."""
    least = 1.0
    while not over.is_set():
        share = await asyncio.to_thread(idle_share, IDLE_WINDOW_S)
        least = min(least, share)
    return least


@contextmanager
def engine(number: int) -> Iterator[str]:
    """One engine without agent or gateway, as the service's own are; its URL."""
    port = free_port()
    argv = [sys.executable, "-m", "roundhouse_sim", "--served-model-name", MODEL, "--port", str(port), *ENGINE_ARGS]
    with running(f"engine-{number}", argv) as child:
        wait_for_http(f"http://127.0.0.1:{port}/health", child)
        yield f"http://127.0.0.1:{port}"


def figures_of(results: Results) -> dict[str, dict[str, float]]:
    ours, others = results.ours, results.others
    sides = {"roundhouse": ours, "round_robin": others}
    means = {name: ttft(outcomes) for name, outcomes in sides.items()}
    failed = [each for each in ours if each.error]
    lost = [each for each in failed if each.target == results.killed and each.sent_at < results.fault_at]
    back = back_after_s(live_hits(ours), results.simulated, results.fault_at)
    return {
        "requests": {name: len(outcomes) for name, outcomes in sides.items()},
        "mean_ttft_s": {name: round(mean, 3) for name, (mean, _) in means.items()},
        "p90_ttft_s": {name: round(p90, 3) for name, (_, p90) in means.items()},
        "hit_ratio": {
            **{name: round(hit_ratio(live_hits(outcomes)), 4) for name, outcomes in sides.items()},
            "simulated": round(hit_ratio(results.simulated), 4),
        },
        "failed_requests": {
            "roundhouse": len(failed) - len(lost),
            "killed_gateways_own": len(lost),
            "round_robin": sum(1 for each in others if each.error),
        },
        "hits_back_after_s": {"roundhouse": back},
        "idle_share_least": {"machine": round(results.idle, 3)},
    }


def goals(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What was to be reached, and whether it was. Raises `BenchmarkError` when the machine was too busy to tell."""
    idle = figures["idle_share_least"]["machine"]
    if idle < LEAST_IDLE:
        raise BenchmarkError(f"void: the machine was only {idle:.0%} idle at times; run it where nothing else runs")

    def ratio(name: str) -> float:
        return figures[name]["roundhouse"] / max(1e-9, figures[name]["round_robin"])

    hits = figures["hit_ratio"]
    checks = {
        "mean TTFT ÷ round robin's": (ratio("mean_ttft_s"), 0.4),
        "p90 TTFT ÷ round robin's": (ratio("p90_ttft_s"), 0.4),
        "hit ratio from the simulation's": (abs(hits["roundhouse"] - hits["simulated"]), 0.02),
        "failed requests but the killed gateway's own": (figures["failed_requests"]["roundhouse"], 0),
        "seconds until hits are back": (figures["hits_back_after_s"]["roundhouse"], 10),
    }
    return [
        f"{'met   ' if value <= most else 'MISSED'} {what}: {value:.3f}, goal at most {most:g}"
        for what, (value, most) in checks.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
