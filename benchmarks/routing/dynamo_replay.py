"""Dynamo's own offline replay of the same trace, with its own engine model and router, where it is installed.

Its times are not ours: another engine model. What can be compared is what each router makes of round robin over the
engines that it was given. ``make peers-dynamo`` installs it.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import BenchmarkError
from benchmarks.routing.traces import BLOCK_TOKENS, Request

ENGINE = {
    "block_size": BLOCK_TOKENS, "num_gpu_blocks": 2343, "max_num_seqs": 128, "max_num_batched_tokens": 8192,
    "enable_prefix_caching": True, "speedup_ratio": 0.2,
}  # fmt: skip
"""A KV cache as big as our replicas', and as loaded as they are."""

TIMEOUT_S = 600.0
ROUTERS = {"round_robin": "round_robin", "dynamo": "kv_router"}
PROGRAM = """
import json, sys
from dynamo import _core
from dynamo.llm import KvRouterConfig
trace, router, engine, workers = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
options = {"router_config": KvRouterConfig()} if router == "kv_router" else {}
done = _core.run_mocker_trace_replay(
    [trace], extra_engine_args={"engine": engine}, num_workers=workers, router_mode=router,
    trace_block_size=engine["block_size"], replay_mode="offline", **options)
print(json.dumps(done.summary))
"""


def python() -> Path | None:
    """Its interpreter, None when it is not installed."""
    cache = Path(os.environ.get("RH_CACHE") or Path.home() / ".cache" / "roundhouse")
    found = cache / "peers" / "dynamo" / "bin" / "python"
    return found if found.exists() else None


def replay(program: Path, requests: Sequence[Request], replicas: int) -> dict[str, dict[str, float]]:
    """Mean time to first token and hit ratio of each router. Raises `BenchmarkError`."""
    figures: dict[str, dict[str, float]] = {"dynamo_replay_mean_ttft_s": {}, "dynamo_replay_hit_ratio": {}}
    with tempfile.TemporaryDirectory(prefix="rh-dynamo-") as folder:
        trace = Path(folder) / "trace.jsonl"
        trace.write_text("".join(json.dumps(_row(request)) + "\n" for request in requests))
        for name, router in ROUTERS.items():
            summary = _run(program, trace, router, replicas)
            figures["dynamo_replay_mean_ttft_s"][name] = round(summary["mean_ttft_ms"] / 1000, 3)
            figures["dynamo_replay_hit_ratio"][name] = round(summary["prefix_cache_reused_ratio"], 3)
    return figures


def _run(program: Path, trace: Path, router: str, replicas: int) -> Mapping[str, float]:
    argv = [str(program), "-c", PROGRAM, str(trace), router, json.dumps(ENGINE), str(replicas)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)
    if done.returncode:
        raise BenchmarkError(f"Dynamo's replay failed: {done.stderr.strip()[-500:]}")
    summary: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return summary


def _row(request: Request) -> dict[str, object]:
    """The trace's own line: a block for each started 512 tokens, the last one of the request alone."""
    partial = [_own(request)] if request.prompt_tokens > BLOCK_TOKENS * len(request.blocks) else []
    return {
        "timestamp": int(request.at * 1000),
        "input_length": request.prompt_tokens,
        "output_length": request.output_tokens,
        "hash_ids": [*request.blocks, *partial],
    }


def _own(request: Request) -> int:
    return (1 << 40) + hash((request.at, request.prompt_tokens)) % (1 << 40)
