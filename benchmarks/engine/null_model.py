"""What a step costs beside the model: the forward pass is replaced by nothing.

256 requests run and 2,000 wait; nothing is detokenised or sent. Also: finding 1,000 cached blocks of a prompt.
"""

import statistics
import time
from collections.abc import Callable

from roundhouse_torch.engine.core import EngineCore
from roundhouse_torch.engine.entrance import Entrance
from roundhouse_torch.kvcache.blocks import BlockPool
from roundhouse_torch.kvcache.host import Move
from roundhouse_torch.messages.command import Add, Sampling
from roundhouse_torch.scheduler.scheduler import Limits, Scheduler
from roundhouse_torch.scheduler.sequence import Sequence
from roundhouse_torch.scheduler.step import Samples, StepPlan, Work

RUNNING = 256
WAITING = 2_000
STEPS = 200
BLOCKS = 1_000
BLOCK_SIZE = 16


class NullRunner:
    def move(self, moves: list[Move]) -> None:
        assert not moves

    def run(self, work: list[Work]) -> Samples:
        return Samples([[7] for item in work if item.samples])


def make_core(blocks: int) -> EngineCore:
    scheduler = Scheduler(BlockPool(blocks), BLOCK_SIZE, Limits(RUNNING, 8_192))
    return EngineCore(scheduler, NullRunner(), Entrance("null"))


def null_model_figures() -> dict[str, float]:
    return {"null_step_cpu_ms": step_cpu_ms(), "prefix_lookup_1000_blocks_ms": lookup_ms()}


def step_cpu_ms() -> float:
    """Mean CPU of a step with everything admitted and 2,000 in the queue."""
    core = make_core(40_000)
    for id in range(RUNNING + WAITING):
        tokens = [(id * 31 + k) % 49_152 for k in range(64)]
        core.add(Add(id, tokens, 2_000, Sampling(temperature=0)))
    while core.scheduler.running < RUNNING:
        core.step()
    return 1e3 * statistics.fmean(_cpu_s(core.step) for _ in range(STEPS))


def lookup_ms() -> float:
    """CPU of planning a step that admits a prompt of 1,000 cached blocks: naming, finding and taking them.

    The prompt was sent before, so the names of its blocks are remembered (`chain.REMEMBERED`).
    """
    scheduler = make_core(4_000).scheduler
    runner = NullRunner()
    prompt = [k * 17 % 49_152 for k in range(BLOCKS * BLOCK_SIZE + 1)]
    times: list[float] = []
    plans: list[StepPlan] = []
    for id in range(40):
        sequence = Sequence(id, list(prompt), Sampling(), max_length=len(prompt) + 1, root=b"root")
        scheduler.add(sequence)
        times.append(_cpu_s(lambda: plans.append(scheduler.plan())))
        while scheduler.running:
            plan = plans.pop() if plans else scheduler.plan()
            scheduler.commit(plan, runner.run(plan.work).tokens)
    return 1e3 * statistics.median(times[1:])


def _cpu_s(action: Callable[[], object]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before
