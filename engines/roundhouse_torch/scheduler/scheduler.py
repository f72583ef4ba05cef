"""Token-budget continuous batching.

A step computes at most ``max_tokens`` tokens: first the one pending token of every growing answer, then chunks of
the prompts already begun, then chunks of waiting ones, in order of priority and arrival. All of it is one batch; there
is no prefill mode.

Blocks are taken when they are needed. When a growing answer needs one and none is available, the sequence started
last of the least urgent priority loses its blocks and goes back to the head of the queue (preemption by recompute;
much of it is usually found in the cache again). A prompt is admitted only when all of it fits beside what the prompts
already begun still need. A chunk never preempts, it shrinks: what an answer took from it comes back when that answer
ends or gives way.

Blocks are named when their tokens are planned, not when they are computed: attention reads a layer's keys after all
of the batch's keys are stored, so sequences of one step can share a block that this very step computes. Two equal
prompts that arrive together are therefore computed once, in lockstep. Whatever is planned is computed before
anything else happens, and a planned sequence is never preempted.
"""

from collections import OrderedDict
from dataclasses import dataclass
from operator import attrgetter

from roundhouse_torch.kvcache.blocks import BlockPool
from roundhouse_torch.kvcache.chain import wire_hash
from roundhouse_torch.kvcache.events import BlockStored
from roundhouse_torch.scheduler.queue import WaitingQueue
from roundhouse_torch.scheduler.sequence import Finish, Sequence
from roundhouse_torch.scheduler.speculation import Speculation
from roundhouse_torch.scheduler.step import StepPlan, Work


@dataclass(frozen=True, slots=True)
class Limits:
    """``max_tokens`` per step is at least ``max_sequences``, so that every answer can grow in every step."""

    max_sequences: int
    max_tokens: int


class Scheduler:
    """Owns waiting and running sequences and their blocks. Call `plan`, compute it, then `commit`."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        limits: Limits,
        *,
        prefix_caching: bool = True,
        speculation: Speculation | None = None,
    ) -> None:
        self.pool = pool
        self._block_size = block_size
        self._max_sequences = limits.max_sequences
        self._max_tokens = max(limits.max_tokens, limits.max_sequences)
        self._prefix_caching = prefix_caching
        self._speculation = speculation
        self._waiting = WaitingQueue()
        self._running: OrderedDict[int, Sequence] = OrderedDict()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Its longest possible form must fit into the pool alone; the caller sees to that."""
        assert -(-sequence.max_length // self._block_size) <= self.pool.total
        self._waiting.push(sequence)

    def abort(self, id: int) -> Sequence | None:
        """Between steps only. None when it ended already."""
        sequence = self._waiting.pop(id) or self._running.pop(id, None)
        if sequence is not None:
            self._release(sequence)
        return sequence

    def plan(self) -> StepPlan:
        """Decide the next step and take its blocks."""
        plan = StepPlan()
        budget = self._plan_answers(plan, self._max_tokens)
        budget, owed = self._plan_prompts(plan, budget)
        if not plan.preempted:
            self._admit(plan, budget, owed)
        if self.pool.host is not None:
            plan.moves = self.pool.host.drain_moves()
        return plan

    def commit(self, plan: StepPlan, tokens: list[list[int]]) -> list[Work]:
        """``plan`` was computed; ``tokens`` are the samples of its sampling work, in order, cut here where an answer
        ends. Gives the work with which one ended.
        """
        ended = []
        samples = iter(tokens)
        for work in plan.work:
            sequence = work.sequence
            sequence.computed += work.count - len(work.draft)
            if not work.samples:
                continue
            work.end = self._append(sequence, next(samples))
            if work.draft:
                self._verified(work)
            if work.end is not None:
                del self._running[sequence.id]
                self._release(sequence)
                ended.append(work)
        return ended

    @staticmethod
    def _append(sequence: Sequence, new: list[int]) -> tuple[Finish, int | None] | None:
        if sequence.pooled:
            return Finish.STOP, None
        for count, token in enumerate(new, 1):
            sequence.tokens.append(token)
            finish = sequence.finish()
            if finish is not None:
                del new[count:]
                return finish
        return None

    def _verified(self, work: Work) -> None:
        """What was right of a draft is computed; the rest will be written over."""
        sequence = work.sequence
        accepted = len(sequence.tokens) - 1 - sequence.computed
        sequence.computed += accepted
        self._name(sequence, sequence.computed)
        if self._speculation is not None:
            self._speculation.observe(sequence, len(work.draft), accepted)

    def _plan_answers(self, plan: StepPlan, budget: int) -> int:
        size, pool, running = self._block_size, self.pool, self._running
        drafts = self._drafts(budget)
        for sequence in sorted(running.values(), key=_urgency):
            start = sequence.computed
            if len(sequence.tokens) - start != 1 or sequence.id not in running:
                continue
            if start == len(sequence.blocks) * size:
                while not pool.available and sequence.id in running:
                    self._preempt_newest(plan)
                if sequence.id not in running:
                    continue
                sequence.blocks.append(pool.take())
            if (start + 1) % size == 0:
                self._name(sequence, start + 1)
            draft = self._with_blocks(sequence, drafts[sequence.id]) if sequence.id in drafts else ()
            plan.work.append(Work(sequence, start, 1 + len(draft), True, draft))
            budget -= 1 + len(draft)
        return budget

    def _drafts(self, budget: int) -> dict[int, list[int]]:
        """Guesses for growing answers, by id, within what the budget leaves when each has its own token."""
        if self._speculation is None or self.pool.available < len(self._running):
            return {}
        answers = [sequence for sequence in self._running.values() if sequence.pending == 1]
        return self._speculation.drafts(answers, budget - len(self._running))

    def _with_blocks(self, sequence: Sequence, draft: list[int]) -> tuple[int, ...]:
        """As much of a draft as fits into blocks that nobody must give up."""
        wanted = self._blocks_for(sequence.computed + 1 + len(draft)) - len(sequence.blocks)
        for _ in range(min(wanted, self.pool.available - len(self._running))):
            sequence.blocks.append(self.pool.take())
        return tuple(draft[: len(sequence.blocks) * self._block_size - sequence.computed - 1])

    def _plan_prompts(self, plan: StepPlan, budget: int) -> tuple[int, int]:
        """Also gives the number of blocks that begun prompts will still need."""
        owed = 0
        for sequence in self._running.values():
            if sequence.pending <= 1:
                continue
            if budget > 0:
                self._extend_prefix(plan, sequence)
                budget -= self._plan_chunk(plan, sequence, budget)
            owed += self._blocks_for(len(sequence.tokens)) - len(sequence.blocks)
        return budget, owed

    def _admit(self, plan: StepPlan, budget: int, owed: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._max_sequences:
            sequence = self._waiting.head()
            hits = self._hits(sequence)
            idle = self.pool.idle(hits)
            owed += self._blocks_for(len(sequence.tokens)) - len(hits)
            if owed > self.pool.available - idle:
                return
            self._start(plan, sequence, hits)
            budget -= self._plan_chunk(plan, sequence, budget)
            owed -= len(sequence.blocks) - len(hits)

    def _start(self, plan: StepPlan, sequence: Sequence, hits: list[int]) -> None:
        self._waiting.pop(sequence.id)
        self._running[sequence.id] = sequence
        self._take_hits(sequence, hits)
        if sequence.cached is None:
            sequence.cached = sequence.computed
            plan.started.append(sequence)
            plan.prefix_queries += sequence.prompt_length
            plan.prefix_hits += sequence.computed

    def _extend_prefix(self, plan: StepPlan, sequence: Sequence) -> None:
        """Skip what another sequence has computed since this prompt was begun."""
        if sequence.computed != len(sequence.blocks) * self._block_size:
            return
        before = sequence.computed
        self._take_hits(sequence, self._hits(sequence))
        if sequence.generated == 0 and sequence.cached is not None:
            sequence.cached += sequence.computed - before
            plan.prefix_hits += sequence.computed - before

    def _hits(self, sequence: Sequence) -> list[int]:
        """Blocks with the content that follows what is computed. The last token is always left to compute."""
        if not self._prefix_caching:
            return []
        first, last = len(sequence.blocks), (len(sequence.tokens) - 1) // self._block_size
        sequence.name_blocks(last, self._block_size)
        return self.pool.match(sequence.names[first:last])

    def _take_hits(self, sequence: Sequence, hits: list[int]) -> None:
        self.pool.share(hits)
        sequence.blocks += hits
        self._restore(sequence)
        sequence.named = len(sequence.blocks)
        sequence.computed = sequence.named * self._block_size

    def _restore(self, sequence: Sequence) -> None:
        """Go on with blocks out of the host's memory; they are copied before the step that reads them."""
        if self.pool.host is None:
            return
        first, last = len(sequence.blocks), (len(sequence.tokens) - 1) // self._block_size
        for name in sequence.names[first:last]:
            if not self.pool.available or name in self.pool:
                break
            block = self.pool.restore(name)
            if block is None:
                break
            sequence.blocks.append(block)
        self._announce(sequence, list(range(first, len(sequence.blocks))))

    def _plan_chunk(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        """As much of a prompt as budget and blocks allow, maybe nothing. Gives the number of tokens."""
        end = min(len(sequence.tokens), sequence.computed + budget)
        end = min(end, (len(sequence.blocks) + self.pool.available) * self._block_size)
        whole = end - end % self._block_size
        if end < len(sequence.tokens) and whole > sequence.computed:
            end = whole  # so that an equal prompt can go on from here
        count = end - sequence.computed
        if count > 0:
            for _ in range(self._blocks_for(end) - len(sequence.blocks)):
                sequence.blocks.append(self.pool.take())
            self._name(sequence, end)
            plan.work.append(Work(sequence, sequence.computed, count, end == len(sequence.tokens)))
        return count

    def _name(self, sequence: Sequence, computed: int) -> None:
        """Name the blocks that are full once ``computed`` tokens are, and announce those that are new."""
        if not self._prefix_caching:
            return
        first, last = sequence.named, computed // self._block_size
        sequence.name_blocks(last, self._block_size)
        new: list[int] = []
        for index in range(first, last):
            block = self.pool.name(sequence.blocks[index], sequence.names[index])
            if block == sequence.blocks[index]:
                new.append(index)
            else:
                sequence.blocks[index] = block
                self._announce(sequence, new)
                new = []
        self._announce(sequence, new)
        sequence.named = last

    def _announce(self, sequence: Sequence, indices: list[int]) -> None:
        if not indices:
            return
        first, last = indices[0], indices[-1] + 1
        self.pool.events.append(
            BlockStored(
                block_hashes=[wire_hash(name) for name in sequence.names[first:last]],
                parent_block_hash=wire_hash(sequence.names[first - 1]) if first else None,
                token_ids=sequence.tokens[first * self._block_size : last * self._block_size],
                block_size=self._block_size,
                lora_name=sequence.adapter or None,
                extra_keys=[_extra_keys(sequence, index) for index in indices],
            )
        )

    def _preempt_newest(self, plan: StepPlan) -> None:
        """Of those with the least urgent priority."""
        sequence = max(reversed(self._running.values()), key=_urgency)
        del self._running[sequence.id]
        self._release(sequence)
        self._waiting.push(sequence, first=True)
        plan.preempted.append(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(reversed(sequence.blocks))
        sequence.blocks = []
        sequence.named = 0
        sequence.computed = 0

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)


_urgency = attrgetter("priority")
"""Answers are planned in this order, so that who gives way is not planned yet."""


def _extra_keys(sequence: Sequence, index: int) -> list[str] | None:
    """The adapter with each block, the salt with the first."""
    keys = [key for key in (sequence.adapter, sequence.salt if index == 0 else "") if key]
    return keys or None
