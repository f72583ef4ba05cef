"""10,000 requests that end when they like: nothing is left of them."""

import random

from roundhouse_torch.engine.core import EngineCore
from roundhouse_torch.engine.entrance import Entrance
from roundhouse_torch.kvcache.blocks import BlockPool
from roundhouse_torch.messages.command import Add, Sampling
from roundhouse_torch.scheduler.scheduler import Limits, Scheduler
from roundhouse_torch.scheduler.speculation import NgramDrafter, Speculation
from roundhouse_torch.scheduler.step import Samples, Work

BLOCK_SIZE, BLOCKS = 4, 60


class Cyclic:
    """Counts to three, so that guesses are right until the prompt's noise misleads them."""

    def run(self, work: list[Work]) -> Samples:
        return Samples([self._new(item) for item in work if item.samples])

    @staticmethod
    def _new(item: Work) -> list[int]:
        new: list[int] = []
        for guess in (*item.draft, None):
            new.append((len(item.sequence.tokens) + len(new)) % 3)
            if new[-1] != guess:
                break
        return new


def test_ten_thousand_random_aborts_leak_no_block() -> None:
    randomness = random.Random(1)
    speculation = Speculation(NgramDrafter(), most=4, max_answers=16)
    scheduler = Scheduler(BlockPool(BLOCKS), BLOCK_SIZE, Limits(16, 48), speculation=speculation)
    core = EngineCore(scheduler, Cyclic(), Entrance("model"))
    live: set[int] = set()
    aborted = 0
    for id in range(17_000):
        prompt = [randomness.randrange(3) for _ in range(randomness.randint(1, 30))]
        core.add(Add(id, prompt, len(prompt) + randomness.randint(1, 40), Sampling(temperature=0)))
        live.add(id)
        if randomness.random() < 0.6:
            live -= {output.id for output in core.step().outputs if output.finish is not None}
        while len(live) > 20 or (live and randomness.random() < 0.3):
            used = scheduler.pool.counts.used
            leaving = randomness.choice(sorted(live))
            live.remove(leaving)
            core.abort(leaving)
            aborted += 1
            assert scheduler.pool.counts.used <= used
    assert aborted >= 10_000
    for id in live:
        core.abort(id)
    assert not core.busy
    counts = scheduler.pool.counts
    assert counts.used == 0
    assert counts.free + counts.cached == BLOCKS
    assert core.reset_cache()
