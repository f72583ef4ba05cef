"""The plan for one step, and what computing it gave."""

from dataclasses import dataclass, field

from roundhouse_torch.kvcache.host import Move
from roundhouse_torch.messages.report import TokenLogprobs
from roundhouse_torch.scheduler.sequence import Finish, Sequence


@dataclass(slots=True)
class Work:
    """Compute ``count`` tokens of ``sequence`` from ``start`` on; ``samples`` when that reaches its end.

    The last ``len(draft)`` of them are guesses of what follows its tokens, computed in order to be verified. ``end``:
    why this was the sequence's last, and the stop token that said so; known when it is committed.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    draft: tuple[int, ...] = ()
    end: tuple[Finish, int | None] | None = None


@dataclass(slots=True)
class StepPlan:
    """``started``: sequences that run for the first time; ``preempted``: those that lost their blocks; ``moves`` are
    carried out before ``work``.
    """

    work: list[Work] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    prefix_queries: int = 0
    prefix_hits: int = 0

    @property
    def tokens(self) -> int:
        return sum(work.count for work in self.work)

    @property
    def sampling(self) -> list[Work]:
        return [work for work in self.work if work.samples]


@dataclass(slots=True)
class Samples:
    """New ``tokens`` of each sampling work, in order: the accepted part of its draft and one more.

    By sequence id, for those who asked: what was likely instead, and the pooled vector (float32) that is all a
    request for an embedding gets.
    """

    tokens: list[list[int]] = field(default_factory=list)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    vectors: dict[int, bytes] = field(default_factory=dict)
