"""How exact the gateways' predictions are, live: what a request would find cached against what its engine reported.

`roundhouse up` with two gateways and two replicas serves SmolLM2; requests of many kinds go through both gateways, and
each gateway tells of each request what it predicted and what came out. The reported cached tokens are turned into
bytes with the model's own tokenizer, so matched and reported bytes can be compared exactly.
"""

import sys
from collections.abc import Mapping
from importlib.metadata import version

from benchmarks.exactness.judgement import Judgement, figures_of
from benchmarks.exactness.service import ENGINES, service
from benchmarks.exactness.traffic import send_all
from benchmarks.harness import BenchmarkError, print_result, quick

REQUESTS, QUICK_REQUESTS = 800, 60
GOALS: Mapping[str, tuple[float, bool]] = {
    "within_one_block_share": (0.99, False),
    "false_hit_share": (0.0025, True),
    "token_error_mae": (35.0, True),
    "token_error_p95": (110.0, True),
}


def main() -> int:
    count = QUICK_REQUESTS if quick() else REQUESTS
    figures: dict[str, dict[str, float]] = {}
    try:
        for engine in ENGINES:
            for name, value in figures_of(_judge(engine, count)).items():
                figures.setdefault(name, {})[engine] = value
    except BenchmarkError as error:
        print(f"bench-exactness: {error}", file=sys.stderr)
        return 1
    for name, (bound, upper) in GOALS.items():
        for engine, value in figures[name].items():
            met = value <= bound if upper else value >= bound
            word = "most" if upper else "least"
            print(f"{'met   ' if met else 'MISSED'} {name} {engine}: {value:g}, goal at {word} {bound:g}")
    print_result("exactness", {"tokenizers": version("tokenizers")}, figures)
    return 0


def _judge(engine: str, count: int) -> list[Judgement]:
    with service(engine) as run:
        judgements = send_all(run, count)
    for each in judgements:
        print(f"{engine} {each}", flush=True)
    return judgements


if __name__ == "__main__":
    sys.exit(main())
