"""The engine without its process: commands in, one report per step out."""

import time
from collections.abc import Callable
from typing import Protocol

from roundhouse_torch.kvcache import chain
from roundhouse_torch.kvcache.host import Move
from roundhouse_torch.messages.command import Add
from roundhouse_torch.messages.report import Load, Output, StepReport
from roundhouse_torch.scheduler.scheduler import Ended, Scheduler
from roundhouse_torch.scheduler.sequence import Sequence
from roundhouse_torch.scheduler.step import Samples, StepPlan, Work


class Runner(Protocol):
    """Computes a step's work; a null model for measurements is one too."""

    def move(self, moves: list[Move]) -> None: ...

    def run(self, work: list[Work]) -> Samples: ...


class EngineCore:
    """``model_name`` enters the names of blocks. ``clock`` is ``time.monotonic`` but for tests."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, model_name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._model_name = model_name
        self._clock = clock

    @property
    def busy(self) -> bool:
        return self.scheduler.running > 0 or self.scheduler.waiting > 0

    def add(self, add: Add) -> None:
        root = chain.root(self._model_name, add.adapter, add.salt)
        self.scheduler.add(
            Sequence(
                add.id,
                add.tokens,
                add.sampling,
                max_length=add.max_length,
                root=root,
                salt=add.salt,
                adapter=add.adapter,
                pooled=add.pooled,
                priority=add.priority,
            )
        )

    def abort(self, id: int) -> None:
        self.scheduler.abort(id)

    def reset_cache(self) -> bool:
        return self.scheduler.pool.clear()

    def step(self) -> StepReport:
        """Compute one step, or nothing when nothing is to be done; the report carries the cache's events either way."""
        began = self._clock()
        plan = self.scheduler.plan()
        if plan.moves:
            self._runner.move(plan.moves)
        samples = self._runner.run(plan.work) if plan.work else Samples()
        ended = self.scheduler.commit(plan, samples.tokens)
        return StepReport(
            began=began,
            ended=self._clock(),
            load=self._load(plan, samples),
            started=[sequence.id for sequence in plan.started],
            outputs=_outputs(plan, samples, ended),
            events=self.scheduler.pool.drain_events(),
        )

    def _load(self, plan: StepPlan, samples: Samples) -> Load:
        counts = self.scheduler.pool.counts
        drafted = [len(work.draft) for work in plan.sampling]
        return Load(
            running=self.scheduler.running,
            waiting=self.scheduler.waiting,
            used_blocks=counts.used,
            step_tokens=plan.tokens,
            prefix_queries=plan.prefix_queries,
            prefix_hits=plan.prefix_hits,
            prompt_computed=sum(max(0, min(w.start + w.count, w.sequence.prompt_length) - w.start) for w in plan.work),
            preemptions=len(plan.preempted),
            drafted=sum(drafted),
            accepted=sum(len(new) - 1 for new, draft in zip(samples.tokens, drafted, strict=True) if draft),
        )


def _outputs(plan: StepPlan, samples: Samples, ended: list[Ended]) -> list[Output]:
    ends = {end.sequence.id: end for end in ended}
    outputs = []
    for work, new in zip(plan.sampling, samples.tokens, strict=True):
        sequence = work.sequence
        id = sequence.id
        end = ends.get(id)
        cached = (sequence.cached or 0) if sequence.generated == len(new) else 0
        if end is None and id not in samples.logprobs:
            outputs.append(Output(id, new, cached))
            continue
        finish, stop = (end.finish, end.stop_token) if end else (None, None)
        told = samples.logprobs[id][: len(new)] if id in samples.logprobs else None
        outputs.append(Output(id, new, cached, finish, stop, told, samples.vectors.get(id)))
    return outputs
