"""The plan for one step."""

from dataclasses import dataclass, field

from roundhouse_torch.scheduler.sequence import Sequence


@dataclass(slots=True)
class Work:
    """Compute ``count`` tokens of ``sequence`` from ``start`` on; ``samples`` when that reaches its end."""

    sequence: Sequence
    start: int
    count: int
    samples: bool


@dataclass(slots=True)
class StepPlan:
    """``started``: sequences that run for the first time; ``preempted``: those that lost their blocks."""

    work: list[Work] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    prefix_queries: int = 0
    prefix_hits: int = 0

    @property
    def tokens(self) -> int:
        return sum(work.count for work in self.work)
