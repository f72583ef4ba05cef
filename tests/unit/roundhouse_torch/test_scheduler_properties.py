"""Random arrivals, aborts and pool sizes: nothing leaks, no slot is read for a wrong prefix, every answer is right."""

import itertools
import random
from collections.abc import Sequence as Many

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from roundhouse_torch.events.mirror import CacheMirror
from roundhouse_torch.kvcache import chain
from roundhouse_torch.kvcache.blocks import BlockPool
from roundhouse_torch.kvcache.host import MEDIUM, HostTier
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.scheduler.scheduler import Limits, Scheduler
from roundhouse_torch.scheduler.sequence import Finish, Sequence
from roundhouse_torch.scheduler.speculation import Speculation

from tests.support.kv_simulator import VOCABULARY, SimulatedRunner, check_blocks, next_token

TOKENS = st.integers(0, 2)


def expected_answer(sequence: Sequence, prompt: list[int], max_length: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < max_length:
        tokens.append(next_token(sequence.root, tokens))
        if tokens[-1] in sequence.sampling.eos_ids:
            break
    return tokens


class HalfRight:
    """Guesses what will come, now and then with a mistake in the middle."""

    def propose(self, wanted: Many[tuple[Sequence, int]]) -> list[list[int]]:
        return [self._guess(sequence, most) for sequence, most in wanted]

    @staticmethod
    def _guess(sequence: Sequence, most: int) -> list[int]:
        sequence.guesses.resume_at = 0
        tokens = list(sequence.tokens)
        while len(tokens) < len(sequence.tokens) + most:
            tokens.append(next_token(sequence.root, tokens))
        if len(sequence.tokens) % 3 == 0:
            tokens[len(sequence.tokens) + most // 2] = VOCABULARY
        return tokens[len(sequence.tokens) :]


class EngineMachine(RuleBasedStateMachine):
    """One scheduler, its simulated memory, and a mirror that follows its events."""

    @initialize(
        block_size=st.sampled_from((1, 2, 3, 4)),
        blocks=st.integers(4, 24),
        max_sequences=st.integers(1, 5),
        max_tokens=st.integers(1, 16),
        prefix_caching=st.sampled_from((True, True, True, False)),
        guesses=st.integers(0, 6),
        host_slots=st.integers(0, 12),
    )
    def start(
        self,
        block_size: int,
        blocks: int,
        max_sequences: int,
        max_tokens: int,
        prefix_caching: bool,
        guesses: int,
        host_slots: int,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(blocks, HostTier(host_slots) if host_slots else None)
        limits = Limits(max_sequences, max_tokens)
        speculation = Speculation(HalfRight(), most=guesses, max_answers=4) if guesses else None
        self.scheduler = Scheduler(
            self.pool, block_size, limits, prefix_caching=prefix_caching, speculation=speculation
        )
        self.budget = max(max_sequences, max_tokens)
        self.runner = SimulatedRunner(block_size)
        self.mirror = CacheMirror()
        self.live: dict[int, Sequence] = {}
        self.wanted: dict[int, list[int]] = {}
        self.histories: list[list[int]] = [[token % 3 for token in range(50)], [0] * 50]
        self.ids = 0

    @rule(data=st.data(), count=st.integers(1, 4))
    def add(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self.add_one(data)

    def add_one(self, data: st.DataObject) -> None:
        longest = self.pool.total * self.block_size
        beginning = data.draw(st.sampled_from(self.histories))[: longest - 2]
        kept = data.draw(st.integers(0, len(beginning)))
        prompt = [*beginning[:kept], *data.draw(st.lists(TOKENS, min_size=kept == 0, max_size=3))][: longest - 1]
        max_length = data.draw(st.integers(len(prompt) + 1, min(longest, len(prompt) + 12)))
        salt = data.draw(st.sampled_from(("", "", "a")))
        ends = frozenset((VOCABULARY - 1,)) if data.draw(st.booleans()) else frozenset[int]()
        root = chain.root("model", "", salt)
        sampling = Sampling(eos_ids=ends)
        priority = data.draw(st.sampled_from((0, 0, 0, 1, -1)))
        sequence = Sequence(
            self.ids, list(prompt), sampling, max_length=max_length, root=root, salt=salt, priority=priority
        )
        self.live[self.ids] = sequence
        self.wanted[self.ids] = expected_answer(sequence, prompt, max_length)
        self.ids += 1
        self.scheduler.add(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.live)))
        assert self.scheduler.abort(id)
        assert not self.scheduler.abort(id)
        assert self.live.pop(id).blocks == []

    @precondition(lambda self: self.ids % 8 == 7)
    @rule()
    def clear(self) -> None:
        assert self.pool.clear() == (self.pool.counts.used == 0)

    @precondition(lambda self: self.live)
    @rule(count=st.integers(1, 20))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.one_step()
            self.blocks_add_up()

    def one_step(self) -> None:
        plan = self.scheduler.plan()
        assert plan.tokens <= self.budget
        assert len({work.sequence.id for work in plan.work}) == len(plan.work)
        assert {sequence.id for sequence in plan.started} <= {work.sequence.id for work in plan.work}
        if self.live and not plan.preempted:
            assert plan.work, "nothing to do although requests wait"
        self.runner.move(plan.moves)
        for ended in self.scheduler.commit(plan, self.runner.run(plan.work).tokens):
            sequence = self.live.pop(ended.sequence.id)
            assert sequence.tokens == self.wanted[sequence.id]
            is_end = sequence.tokens[-1] in sequence.sampling.eos_ids
            assert ended.end is not None
            assert ended.end[0] == (Finish.STOP if is_end else Finish.LENGTH)
            assert sequence.blocks == []
            self.histories.append(sequence.tokens)

    @invariant()
    def blocks_add_up(self) -> None:
        if hasattr(self, "pool"):
            check_blocks(self.scheduler, list(self.live.values()))
            assert self.scheduler.running + self.scheduler.waiting == len(self.live)

    @invariant()
    def events_tell_the_content(self) -> None:
        if not hasattr(self, "pool"):
            return
        for event in self.pool.drain_events():
            self.mirror.apply(event)
        held = {chain.wire_hash(name) for name in self.pool.contents}
        assert set(self.mirror.blocks) == held
        on_host = self.pool.host.contents if self.pool.host is not None else ()
        assert set(self.mirror.on_host) == {chain.wire_hash(name) for name in on_host}
        seen: set[int] = set()
        for event in self.mirror.events():
            if event.medium == MEDIUM:
                assert set(event.block_hashes) == set(self.mirror.on_host)
                continue
            assert event.parent_block_hash is None or event.parent_block_hash in seen
            seen.update(event.block_hashes)
        assert seen == held

    def teardown(self) -> None:
        """Whatever happened, all that is left gets its answer and then nothing is used."""
        if not hasattr(self, "pool"):
            return
        for _ in range(10_000):
            if not self.live:
                break
            self.one_step()
        assert not self.live
        assert self.pool.counts.used == 0


EngineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestEngineMachine = EngineMachine.TestCase


@settings(max_examples=60, deadline=None)
@given(prompt=st.lists(TOKENS, min_size=1, max_size=40), copies=st.integers(2, 5), block_size=st.sampled_from((1, 4)))
def test_equal_prompts_that_arrive_together_are_computed_once(prompt: list[int], copies: int, block_size: int) -> None:
    scheduler = Scheduler(BlockPool(400), block_size, Limits(8, 16))
    runner = SimulatedRunner(block_size)
    root = chain.root("model", "", "")
    for id in range(copies):
        scheduler.add(Sequence(id, list(prompt), Sampling(), max_length=len(prompt) + 1, root=root))
    for _ in range(200):
        plan = scheduler.plan()
        scheduler.commit(plan, runner.run(plan.work).tokens)
    tail = (len(prompt) - 1) % block_size + 1
    assert runner.computed == len(prompt) + (copies - 1) * tail


def test_ten_thousand_aborts_leak_no_block() -> None:
    """At any moment: waiting, half computed, answering, preempted."""
    draw = random.Random(7)
    scheduler = Scheduler(BlockPool(60, HostTier(20)), 4, Limits(8, 32))
    runner = SimulatedRunner(4)
    root = chain.root("model", "", "")
    live: dict[int, Sequence] = {}
    aborted = preempted = 0
    for id in itertools.count():
        prompt = [draw.randrange(3) for _ in range(draw.randrange(1, 60))]
        sequence = Sequence(id, prompt, Sampling(), max_length=len(prompt) + draw.randrange(1, 60), root=root)
        sequence.priority = draw.choice((0, 0, 1))
        live[id] = sequence
        scheduler.add(sequence)
        for _ in range(draw.randrange(3)):
            plan = scheduler.plan()
            preempted += len(plan.preempted)
            runner.move(plan.moves)
            for ended in scheduler.commit(plan, runner.run(plan.work).tokens):
                del live[ended.sequence.id]
        while len(live) > draw.randrange(5, 30):
            victim = draw.choice(list(live))
            assert scheduler.abort(victim)
            del live[victim]
            aborted += 1
        check_blocks(scheduler, list(live.values()))
        if aborted >= 10_000:
            break
    assert preempted > 100
    for id in live:
        scheduler.abort(id)
    assert scheduler.pool.counts.used == 0
    assert scheduler.pool.clear()


def test_the_most_urgent_is_started_first_and_the_least_urgent_gives_way() -> None:
    scheduler = Scheduler(BlockPool(6), 4, Limits(2, 64))
    runner = SimulatedRunner(4)
    root = chain.root("model", "", "")
    order: list[int] = []
    for id, priority in enumerate((5, 0, 5, -1)):
        scheduler.add(Sequence(id, [id] * 7, Sampling(), max_length=20, root=root, priority=priority))
    preempted = []
    while scheduler.running or scheduler.waiting:
        plan = scheduler.plan()
        order += [sequence.id for sequence in plan.started]
        preempted += [sequence.priority for sequence in plan.preempted]
        scheduler.commit(plan, runner.run(plan.work).tokens)
    assert order == [3, 1, 0, 2]
    assert preempted
    assert preempted[0] == 0
