"""A runner without a model whose "KV" can be checked: every slot remembers for which prefix it was written.

Before it computes a token it demands that each earlier position of that sequence lies in a slot that was written for
exactly this prefix. Whatever a scheduler does wrong (a block shared too early, freed too early, hit by another chain's
name) shows here as a slot with another prefix. A sample is a hash of the whole prefix, so that outputs depend on
nothing else. Guesses are verified as by the real sampler.
"""

from collections.abc import Sequence as Many

from roundhouse_torch.kvcache.host import Move
from roundhouse_torch.scheduler.scheduler import Scheduler
from roundhouse_torch.scheduler.sequence import Sequence
from roundhouse_torch.scheduler.step import Samples, Work

VOCABULARY = 7


def next_token(root: bytes, tokens: Many[int]) -> int:
    return hash((root, tuple(tokens))) % VOCABULARY


class SimulatedRunner:
    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._written: dict[tuple[int, int], int] = {}
        self._host: dict[int, list[int | None]] = {}
        self.computed = 0

    def move(self, moves: Many[Move]) -> None:
        for move in moves:
            places = [(move.block, offset) for offset in range(self._block_size)]
            if move.to_host:
                self._host[move.slot] = [self._written.get(place) for place in places]
            else:
                for place, value in zip(places, self._host[move.slot], strict=True):
                    assert value is not None
                    self._written[place] = value

    def run(self, work: list[Work]) -> Samples:
        for item in work:
            assert item.count > 0
            assert item.start == item.sequence.computed
            for position in range(item.start, item.start + item.count):
                self._written[self._slot(item.sequence, position)] = self._prefix(item, position)
                self.computed += 1
        for item in work:
            for position in range(item.start + item.count):
                slot = self._slot(item.sequence, position)
                assert self._written.get(slot) == self._prefix(item, position), (item.sequence.id, position)
        return Samples([self._verified(item) for item in work if item.samples])

    @staticmethod
    def _verified(item: Work) -> list[int]:
        root, tokens, new = item.sequence.root, item.sequence.tokens, []
        for guess in (*item.draft, None):
            new.append(next_token(root, [*tokens, *new]))
            if new[-1] != guess:
                break
        return new

    def _slot(self, sequence: Sequence, position: int) -> tuple[int, int]:
        return sequence.blocks[position // self._block_size], position % self._block_size

    def _prefix(self, item: Work, position: int) -> int:
        return hash((item.sequence.root, (*item.sequence.tokens, *item.draft)[: position + 1]))


def check_blocks(scheduler: Scheduler, held: Many[Sequence]) -> None:
    """``free + cached + used = total``, and a block is used exactly by the sequences that list it."""
    pool = scheduler.pool
    counts = pool.counts
    assert counts.free + counts.cached + counts.used == pool.total
    users: dict[int, int] = {}
    for sequence in held:
        for block in sequence.blocks:
            users[block] = users.get(block, 0) + 1
    assert len(users) == counts.used
    for block in range(pool.total):
        assert pool.idle((block,)) == (block not in users)
