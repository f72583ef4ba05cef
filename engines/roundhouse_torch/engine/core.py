"""The engine without its process: commands in, one report per step out; and the loop that runs it."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from roundhouse_torch.engine.entrance import Entrance
from roundhouse_torch.kvcache.host import Move
from roundhouse_torch.messages.command import Abort, Add, Command, LoadAdapter, Order, ResetCache, UnloadAdapter
from roundhouse_torch.messages.link import EngineEnd
from roundhouse_torch.messages.report import Done, Load, Output, StepReport
from roundhouse_torch.models.adapter import AdapterError
from roundhouse_torch.scheduler.scheduler import Scheduler
from roundhouse_torch.scheduler.step import Samples, StepPlan, Work


class Runner(Protocol):
    """Computes a step's work; a null model for measurements is one too."""

    def move(self, moves: list[Move]) -> None: ...

    def run(self, work: list[Work]) -> Samples: ...


IDLE_S = 1.0
"""An idle engine reports this often: its sign of life."""
DEFERRED_S = 0.002
"""… and this often while all that it has waits at the entrance."""


@dataclass(frozen=True, slots=True)
class EngineCore:
    scheduler: Scheduler
    runner: Runner
    entrance: Entrance

    @property
    def busy(self) -> bool:
        return self.scheduler.running > 0 or self.scheduler.waiting > 0 or len(self.entrance) > 0

    @property
    def patience_s(self) -> float:
        """How long the loop may wait for commands before the next step."""
        if self.scheduler.running or self.scheduler.waiting:
            return 0.0
        return DEFERRED_S if len(self.entrance) else IDLE_S

    def obey(self, command: Command) -> Done | None:
        match command:
            case Add():
                self.add(command)
            case Abort(id):
                self.abort(id)
            case _:
                return Done(command.ticket, self._order(command))
        return None

    def add(self, add: Add) -> None:
        self.entrance.add(add)

    def abort(self, id: int) -> None:
        """Frees its blocks at once."""
        sequence = None if self.entrance.abort(id) else self.scheduler.abort(id)
        if sequence is not None:
            self.entrance.leave(sequence)

    def reset_cache(self) -> bool:
        return self.scheduler.pool.clear()

    def step(self) -> StepReport:
        """Compute one step, or nothing when nothing is to be done; the report carries the cache's events either way."""
        began = time.monotonic()
        admitted, refused = self.entrance.admit() if len(self.entrance) else ([], [])
        for sequence in admitted:
            self.scheduler.add(sequence)
        plan = self.scheduler.plan()
        if plan.moves:
            self.runner.move(plan.moves)
        samples = self.runner.run(plan.work) if plan.work else Samples()
        for work in self.scheduler.commit(plan, samples.tokens):
            self.entrance.leave(work.sequence)
        return StepReport(
            began=began,
            ended=time.monotonic(),
            load=self._load(plan, samples),
            started=[sequence.id for sequence in plan.started],
            outputs=refused + _outputs(plan, samples),
            events=self.scheduler.pool.drain_events(),
        )

    def _order(self, order: Order) -> str:
        """Empty, or why it cannot be done."""
        adapters = self.entrance.adapters
        match order:
            case ResetCache():
                return "" if self.reset_cache() else "blocks are in use"
            case LoadAdapter(_, name, folder) if adapters is not None:
                try:
                    adapters.load(name, Path(folder))
                except AdapterError as error:
                    return str(error)
            case UnloadAdapter(_, name) if adapters is not None:
                adapters.unload(name)
            case _:
                return "this engine was started without --enable-lora"
        return ""

    def _load(self, plan: StepPlan, samples: Samples) -> Load:
        counts = self.scheduler.pool.counts
        drafted = [len(work.draft) for work in plan.sampling]
        return Load(
            running=self.scheduler.running,
            waiting=self.scheduler.waiting + len(self.entrance),
            used_blocks=counts.used,
            step_tokens=plan.tokens,
            prefix_queries=plan.prefix_queries,
            prefix_hits=plan.prefix_hits,
            prompt_computed=sum(max(0, min(w.start + w.count, w.sequence.prompt_length) - w.start) for w in plan.work),
            preemptions=len(plan.preempted),
            drafted=sum(drafted),
            deferred=len(self.entrance),
            accepted=sum(len(new) - 1 for new, draft in zip(samples.tokens, drafted, strict=True) if draft),
        )


def run_loop(core: EngineCore, link: EngineEnd) -> NoReturn:
    """Until the server closes the link, which raises `EOFError`.

    Commands take effect between steps, so an abort frees its blocks within one step. An order is answered behind the
    report that carries its events.
    """
    while True:
        replies = [core.obey(command) for command in link.receive(core.patience_s)]
        link.send(core.step())
        for reply in filter(None, replies):
            link.send(reply)


def _outputs(plan: StepPlan, samples: Samples) -> list[Output]:
    outputs = []
    for work, new in zip(plan.sampling, samples.tokens, strict=True):
        sequence = work.sequence
        id = sequence.id
        cached = (sequence.cached or 0) if sequence.generated == len(new) else 0
        if work.end is None and id not in samples.logprobs:
            outputs.append(Output(id, new, cached))
            continue
        finish, stop = work.end or (None, None)
        told = samples.logprobs[id][: len(new)] if id in samples.logprobs else None
        outputs.append(Output(id, new, cached, finish, stop, told, samples.vectors.get(id)))
    return outputs
