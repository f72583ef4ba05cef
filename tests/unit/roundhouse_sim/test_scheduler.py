import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundhouse_sim.cache import PrefixCache
from roundhouse_sim.cost import CostModel
from roundhouse_sim.scheduler import Limits, Phase, Scheduler, Segment, Sequence

FLAT = CostModel(step_s=1.0, prefill_token_s=0.0, attention_s=0.0, decode_context_s=0.0, decode_sequence_s=0.0)


def make(blocks: int = 1000, *, cost: CostModel = FLAT, limits: Limits | None = None, block_size: int = 4) -> Scheduler:
    return Scheduler(cost, PrefixCache(blocks), block_size, limits or Limits())


def plan(scheduler: Scheduler, now: float = 0.0, slowdown: float = 1.0) -> Segment:
    segment = scheduler.plan(now, slowdown)
    assert segment is not None
    return segment


def run(scheduler: Scheduler, now: float = 0.0) -> dict[Sequence, float]:
    """Until nothing is left; returns when each sequence ended."""
    ends: dict[Sequence, float] = {}
    while (segment := scheduler.plan(now)) is not None:
        now = segment.end
        for sequence in scheduler.finish(segment):
            if sequence.complete:
                scheduler.release(sequence)
                ends[sequence] = now
    return ends


def test_prompt_then_one_token_a_step() -> None:
    scheduler = make()
    sequence = Sequence(10, 5, [])
    scheduler.submit(sequence)
    assert run(scheduler) == {sequence: pytest.approx(5.0)}


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget() -> None:
    scheduler = make(limits=Limits(step_tokens=256))
    sequence = Sequence(1000, 1, [])
    scheduler.submit(sequence)
    assert run(scheduler) == {sequence: pytest.approx(4.0)}


def test_decodes_go_on_while_another_prompt_is_prefilled() -> None:
    scheduler = make(limits=Limits(step_tokens=257))
    first, second = Sequence(4, 10, []), Sequence(600, 1, [])
    scheduler.submit(first)
    scheduler.finish(plan(scheduler))
    scheduler.submit(second)
    for _ in range(3):
        scheduler.finish(plan(scheduler))
    assert (first.generated, second.generated) == (4, 1)


def test_step_time_adds_up_its_parts() -> None:
    cost = CostModel(step_s=1.0, prefill_token_s=0.1, attention_s=0.01, decode_context_s=0.001, decode_sequence_s=0.5)
    scheduler = make(cost=cost)
    scheduler.submit(Sequence(10, 9, []))
    scheduler.finish(plan(scheduler))
    scheduler.submit(Sequence(20, 9, []))
    segment = plan(scheduler)
    assert segment.end == pytest.approx(1.0 + 0.5 + 0.001 * 10 + 0.1 * 20 + 0.01 * 20 * 10)


def test_slowdown_multiplies_the_step() -> None:
    scheduler = make()
    scheduler.submit(Sequence(10, 9, []))
    assert plan(scheduler, 5.0, slowdown=3.0).end == pytest.approx(8.0)


def test_a_second_equal_prompt_computes_only_what_is_not_cached() -> None:
    scheduler = make()
    keys = [11, 12, 13]
    scheduler.submit(Sequence(13, 1, list(keys)))
    run(scheduler)
    again = Sequence(13, 1, list(keys))
    scheduler.submit(again)
    run(scheduler)
    assert again.cached_tokens == 12


def test_the_last_prompt_token_is_always_computed() -> None:
    scheduler = make()
    keys = [11, 12, 13]
    scheduler.submit(Sequence(12, 1, list(keys)))
    run(scheduler)
    again = Sequence(12, 1, list(keys))
    scheduler.submit(again)
    run(scheduler)
    assert again.cached_tokens == 8


def test_equal_prompts_of_one_step_share_their_work() -> None:
    scheduler = make()
    twins = [Sequence(13, 1, [11, 12, 13]) for _ in range(2)]
    for twin in twins:
        scheduler.submit(twin)
    run(scheduler)
    assert [twin.cached_tokens for twin in twins] == [0, 12]


def test_keys_of_the_answer_become_reusable_as_it_is_computed() -> None:
    scheduler = make()
    sequence = Sequence(4, 6, [11])
    scheduler.submit(sequence)
    scheduler.finish(plan(scheduler))
    sequence.keys.append(12)
    run(scheduler)
    assert scheduler.cache.match([11, 12]) == 2


def test_no_more_than_the_limit_run_at_once() -> None:
    scheduler = make(limits=Limits(sequences=2))
    for _ in range(5):
        scheduler.submit(Sequence(4, 2, []))
    scheduler.plan(0.0)
    assert (scheduler.running, len(scheduler.waiting)) == (2, 3)


def test_what_does_not_fit_waits_in_order() -> None:
    scheduler = make(blocks=10)
    big, small = Sequence(30, 2, []), Sequence(4, 2, [])
    blocker = Sequence(20, 2, [])
    for sequence in (blocker, big, small):
        scheduler.submit(sequence)
    ends = run(scheduler)
    assert list(ends) == [blocker, big, small]


@pytest.mark.parametrize("steps_before", [0, 1, 4])
def test_release_gives_back_everything_in_any_phase(steps_before: int) -> None:
    scheduler = make(limits=Limits(step_tokens=256))
    sequence = Sequence(600, 50, list(range(1, 151)))
    scheduler.submit(sequence)
    for _ in range(steps_before):
        scheduler.finish(plan(scheduler))
    scheduler.release(sequence)
    scheduler.release(sequence)
    assert sequence.phase is Phase.DONE
    assert (scheduler.cache.used, scheduler.running, len(scheduler.waiting), scheduler.context_tokens) == (0, 0, 0, 0)


def test_release_in_the_middle_of_a_segment_leaves_the_others_alone() -> None:
    scheduler = make()
    gone, kept = Sequence(8, 3, [1, 2]), Sequence(8, 3, [3, 4])
    scheduler.submit(gone)
    scheduler.submit(kept)
    segment = plan(scheduler)
    scheduler.release(gone)
    assert scheduler.finish(segment) == [kept]


def test_pure_decode_is_planned_many_steps_at_a_time_until_somebody_wants_control() -> None:
    scheduler = make(limits=Limits(segment_steps=32))
    sequence = Sequence(4, 100, [])
    scheduler.submit(sequence)
    scheduler.finish(plan(scheduler))
    assert plan(scheduler).steps == 32
    sequence.wake_at = 4
    assert plan(scheduler).steps == 3


def test_many_steps_at_a_time_take_exactly_as_long_as_one_by_one() -> None:
    ends = []
    for steps in (1, 32):
        scheduler = make(cost=CostModel(), limits=Limits(segment_steps=steps))
        for length in (40, 90, 300):
            scheduler.submit(Sequence(length, length // 2, []))
        ends.append(list(run(scheduler).values()))
    assert ends[0] == pytest.approx(ends[1])


@given(
    first=st.floats(0.001, 1.0), growth=st.floats(0.0, 0.1), steps=st.integers(1, 40), at=st.floats(-0.5, 60.0)
)  # fmt: skip
def test_cut_ends_at_the_first_step_edge_at_or_after_now(first: float, growth: float, steps: int, at: float) -> None:
    whole = Segment(0.0, first, growth, steps)
    edges = [Segment(0.0, first, growth, n).end for n in range(1, steps + 1)]
    whole.cut(at)
    expected = next((edge for edge in edges if edge >= at), edges[-1])
    assert whole.end == expected


def test_rescale_stretches_only_what_is_left() -> None:
    segment = Segment(10.0, 4.0, 0.0, 2)
    segment.rescale(12.0, 3.0)
    assert segment.end == pytest.approx(12.0 + 6.0 * 3.0)


arrivals = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 3)), min_size=1, max_size=30)


@settings(deadline=None)
@given(arrivals, st.integers(0, 10), st.integers(20, 40))
def test_any_mix_of_requests_and_aborts_ends_with_an_empty_pool(
    requests: list[tuple[int, int, int]], abort_every: int, blocks: int
) -> None:
    scheduler = make(blocks=blocks, limits=Limits(step_tokens=256, sequences=4, segment_steps=3))
    alive = []
    for index, (prompt, output, root) in enumerate(requests):
        sequence = Sequence(prompt, output, [root * 1000 + depth for depth in range(prompt // 4)])
        scheduler.submit(sequence)
        alive.append(sequence)
        segment = scheduler.plan(float(index))
        if abort_every and index % abort_every == 0:
            scheduler.release(alive.pop(0))
        for advanced in scheduler.finish(segment) if segment else ():
            if advanced.complete:
                scheduler.release(advanced)
    run(scheduler)
    cache = scheduler.cache
    assert (cache.used, scheduler.running, len(scheduler.waiting), scheduler.context_tokens) == (0, 0, 0, 0)
    assert all(sequence.phase is Phase.DONE for sequence in alive)
    assert len(cache.idle) <= blocks
