import asyncio
from collections.abc import Callable

import pytest
from roundhouse_sim.answer import AnswerWriter
from roundhouse_sim.cache import Change
from roundhouse_sim.cost import CostModel
from roundhouse_sim.engine import Engine
from roundhouse_sim.job import Job
from roundhouse_sim.settings import Settings
from roundhouse_sim.tokens import encode

FLAT = CostModel(step_s=1.0, prefill_token_s=0.0, attention_s=0.0, decode_context_s=0.0, decode_sequence_s=0.0)


class Clockwork:
    """A clock and a timer that tests turn by hand; ``late`` delays every timer."""

    def __init__(self, late: float = 0.0) -> None:
        self.now = 100.0
        self.late = late
        self.timers: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []
        self.loop = asyncio.new_event_loop()

    def clock(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(0.0, callback, (), self.loop)
        self.timers.append((self.now + delay + self.late, callback, handle))
        return handle

    def run(self, until: float) -> None:
        """Fire timers in order up to ``until`` seconds from the start."""
        while True:
            live = [timer for timer in self.timers if not timer[2].cancelled()]
            due = min((timer for timer in live if timer[0] <= 100.0 + until), default=None, key=lambda timer: timer[0])
            self.timers = [timer for timer in live if timer is not due]
            if due is None:
                self.now = 100.0 + until
                return
            self.now = max(self.now, due[0])
            due[1]()


@pytest.fixture
def clockwork():  # type: ignore[no-untyped-def]
    works = Clockwork()
    yield works
    works.loop.close()


def make(works: Clockwork, **fields: object) -> tuple[Engine, list[Change]]:
    changes: list[Change] = []
    settings = Settings(cost=FLAT, block_size=4, kv_tokens=400, **fields)  # type: ignore[arg-type]
    return Engine(settings, changes.extend, works, works.clock), changes


def job(works: Clockwork, deliveries: list[tuple[float, int]], prompt: str = "abcd", limit: int = 4) -> Job:
    tokens = encode(prompt)

    def deliver(done: Job) -> None:
        deliveries.append((round(works.now - 100.0, 6), done.generated))

    made = Job(tokens, AnswerWriter(tokens, 0, 0), limit, "", 4, deliver)
    made.interval = 1
    return made


def test_tokens_come_when_their_step_ends(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork)
    deliveries: list[tuple[float, int]] = []
    engine.submit(job(clockwork, deliveries))
    clockwork.run(10)
    assert deliveries == [(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4)]


def test_speedup_divides_time(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork, speedup=10.0)
    deliveries: list[tuple[float, int]] = []
    engine.submit(job(clockwork, deliveries))
    clockwork.run(10)
    assert [at for at, _ in deliveries] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_late_timers_do_not_add_up(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork)
    clockwork.late = 0.3
    deliveries: list[tuple[float, int]] = []
    engine.submit(job(clockwork, deliveries))
    clockwork.run(10)
    assert [at for at, _ in deliveries] == pytest.approx([1.3, 2.3, 3.3, 4.3])


def test_an_arrival_joins_the_next_step_and_waits_for_nothing_else(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork)
    early: list[tuple[float, int]] = []
    late: list[tuple[float, int]] = []
    first = job(clockwork, early, limit=30)
    first.interval = 0
    engine.submit(first)
    clockwork.run(5.5)
    engine.submit(job(clockwork, late, limit=1))
    clockwork.run(100)
    assert (early, late) == ([(1.0, 1), (30.0, 30)], [(7.0, 1)])


def test_interval_spaces_deliveries_after_the_first_token(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork)
    deliveries: list[tuple[float, int]] = []
    made = job(clockwork, deliveries, limit=8)
    made.interval = 3
    engine.submit(made)
    clockwork.run(20)
    assert [count for _, count in deliveries] == [1, 4, 7, 8]


def test_aborted_jobs_leave_nothing_behind_and_say_nothing_more(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork)
    deliveries: list[tuple[float, int]] = []
    made = job(clockwork, deliveries)
    engine.submit(made)
    clockwork.run(2.5)
    engine.abort(made)
    engine.abort(made)
    clockwork.run(10)
    assert (len(deliveries), engine.jobs, engine.kv_used) == (2, [], 0.0)


def test_a_job_may_be_aborted_from_the_delivery_of_another(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork)
    deliveries: list[tuple[float, int]] = []
    victim = job(clockwork, deliveries)
    killer = Job(encode("xyz"), AnswerWriter("xyz", 0, 0), 5, "", 4, lambda _: engine.abort(victim))
    engine.submit(killer)
    engine.submit(victim)
    clockwork.run(10)
    assert (deliveries, engine.jobs, engine.kv_used) == ([], [], 0.0)


def test_slowing_down_stretches_the_step_under_way_too(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork)
    deliveries: list[tuple[float, int]] = []
    engine.submit(job(clockwork, deliveries))
    clockwork.run(0.5)
    engine.slow_down(10.0)
    clockwork.run(2.5)
    engine.slow_down(1.0)
    clockwork.run(20)
    assert [at for at, _ in deliveries] == pytest.approx([2.8, 3.8, 4.8, 5.8])


def test_prompt_and_answer_blocks_can_be_reused(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork)
    deliveries: list[tuple[float, int]] = []
    first = job(clockwork, deliveries, prompt="abcdef", limit=7)
    engine.submit(first)
    clockwork.run(10)
    again = job(clockwork, deliveries, prompt="abcdef" + first.text() + "next", limit=1)
    engine.submit(again)
    clockwork.run(20)
    assert again.cached_tokens == 12


def test_cache_is_cleared_only_while_idle(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork)
    engine.submit(job(clockwork, []))
    assert not engine.clear_cache()
    clockwork.run(10)
    assert engine.clear_cache()
    assert not engine.cache.idle


def test_an_engine_that_cannot_keep_up_says_how_far_it_is_behind(clockwork: Clockwork) -> None:
    engine, _ = make(clockwork)
    made = job(clockwork, [], limit=300)
    engine.submit(made)
    clockwork.late = 200.0
    clockwork.run(1.0)
    clockwork.now = 300.0
    clockwork.late = 0.0
    engine.slow_down(1.0)
    assert engine.lag > 0
    clockwork.run(400)
    assert engine.lag == 0
