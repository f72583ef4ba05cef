"""What the prefix index costs: memory and look-ups of a gateway's copy, writes to it, how late it is, and the agent's
work per stored block.

Look-ups, writes and loads are the product's `ServiceIndex`, timed by its own process's CPU clock; lag is real: agents'
batches go through a real Valkey to two reading processes, each a whole `GatewayFeed`.
"""

import sys
from collections.abc import Mapping
from importlib.metadata import version

from benchmarks.harness import BenchmarkError, print_result, quick
from benchmarks.index.blocks import block_figures
from benchmarks.index.copy import copy_figures
from benchmarks.index.lag import lag_figures

GOALS: Mapping[str, tuple[float, bool]] = {
    "bytes_per_key": (34.0, True),
    "match_usual_us": (5.0, True),
    "match_worst_us": (60.0, True),
    "adds_per_s": (1e6, False),
    "removes_per_s": (1e6, False),
    "cold_load_cpu_s": (3.0, True),
    "lag_p99_ms": (60.0, True),
    "agent_plain_us_per_block": (20.0, True),
    "agent_canonical_us_per_block": (150.0, True),
}
"""Figure → bound, and whether it is an upper one. Each must hold for every variant of its figure."""


def main() -> int:
    try:
        figures = {**copy_figures(quick()), **block_figures(quick()), **lag_figures(quick())}
    except BenchmarkError as error:
        print(f"bench-index: {error}", file=sys.stderr)
        return 1
    for line in goals(figures):
        print(line)
    versions = {"numpy": version("numpy"), "redis": version("redis"), "tokenizers": version("tokenizers")}
    print_result("index", versions, figures)
    return 0


def goals(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What was to be reached, and whether it was."""
    lines = []
    for name, (bound, upper) in GOALS.items():
        for variant, value in figures[name].items():
            met = value <= bound if upper else value >= bound
            word = "most" if upper else "least"
            lines.append(f"{'met   ' if met else 'MISSED'} {name} {variant}: {value:g}, goal at {word} {bound:g}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
