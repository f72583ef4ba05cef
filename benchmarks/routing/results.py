"""What a run of the simulation amounts to."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.routing.simulation import Simulation

TTFT_GOAL_S = 2.0
TPOT_GOAL_S = 0.1


@dataclass(frozen=True)
class Result:
    """``hit``: cached share of prompt tokens. ``imbalance``: the busiest replica's prompt tokens over the mean.
    ``goals``: share of requests with a first token within 2 s and then at most 0.1 s a token."""

    hit: float
    imbalance: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    goals: float

    def row(self) -> str:
        return (
            f"hit {self.hit:.3f}  max/mean {self.imbalance:.2f}  TTFT p50 {self.ttft_p50_s:.2f}"
            f" p90 {self.ttft_p90_s:.2f} p99 {self.ttft_p99_s:.2f} mean {self.ttft_mean_s:.3f} s"
            f"  TPOT p50 {self.tpot_p50_s * 1e3:.0f} p99 {self.tpot_p99_s * 1e3:.0f} ms  goals {self.goals:.1%}"
        )


def summarise(simulation: Simulation) -> Result:
    flights = simulation.flights
    ttft = [flight.first_at - flight.request.at for flight in flights]
    tpot = [
        (flight.ended_at - flight.first_at) / (flight.output_tokens - 1) if flight.output_tokens > 1 else 0.0
        for flight in flights
    ]
    paced = [value for value, flight in zip(tpot, flights, strict=True) if flight.output_tokens > 1]
    loads = [replica.prompt_tokens for replica in simulation.replicas]
    met = sum(1 for first, each in zip(ttft, tpot, strict=True) if first <= TTFT_GOAL_S and each <= TPOT_GOAL_S)
    return Result(
        hit=sum(replica.cached_tokens for replica in simulation.replicas) / max(1, sum(loads)),
        imbalance=max(loads) * len(loads) / max(1, sum(loads)),
        ttft_p50_s=percentile(ttft, 0.5),
        ttft_p90_s=percentile(ttft, 0.9),
        ttft_p99_s=percentile(ttft, 0.99),
        ttft_mean_s=sum(ttft) / len(ttft),
        tpot_p50_s=percentile(paced, 0.5),
        tpot_p99_s=percentile(paced, 0.99),
        goals=met / len(flights),
    )


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
