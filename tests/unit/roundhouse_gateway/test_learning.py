"""What prefill costs: start values from physics, and what samples make of them."""

import gc
from collections.abc import Sequence
from random import Random

import pytest
from roundhouse_gateway.learning import (
    MAX_B_S,
    MAX_F,
    SHAPE_RANGE,
    UNNAMED_VARIANCE,
    Shape,
    Speed,
    busy_share,
    start_shape,
)
from roundhouse_gateway.pick import PrefillCost

A, Q = 1e-4, 2e-9


def fleet(count: int) -> tuple[Shape, list[Speed]]:
    return Shape(A, Q), [Speed() for _ in range(count)]


def teach(shape: Shape, speeds: Sequence[Speed], truths: Sequence[PrefillCost], rounds: int, *, seed: int = 1) -> None:
    """``rounds`` samples of each replica, prompts of all lengths, 10 % of noise."""
    random = Random(seed)
    for _ in range(rounds):
        for speed, truth in zip(speeds, truths, strict=True):
            uncached, cached = random.choice([50, 500, 3000, 20_000]), random.choice([0, 5000, 50_000])
            speed.learn(shape, uncached, cached, truth.seconds(uncached, cached) * random.uniform(0.9, 1.1))


def error(speed: Speed, shape: Shape, truth: PrefillCost, uncached: int = 4000, cached: int = 1000) -> float:
    return speed.cost(shape).seconds(uncached, cached) / truth.seconds(uncached, cached) - 1


def test_start_shape_of_a_70b_on_eight_a100_is_what_was_measured() -> None:
    a, q = start_shape(70_000_000_000, 80, 8192, "NVIDIA-A100-SXM4-80GB", 8)
    assert a == pytest.approx(1.1e-4, rel=0.05)
    assert q == pytest.approx(2.1e-9, rel=0.05)


@pytest.mark.parametrize(
    ("faster", "slower"), [("H100", "A100"), ("nvidia-h200", "l4"), ("A10G", ""), ("b200", "H100"), ("L40S", "T4")]
)
def test_start_shape_follows_the_gpu(faster: str, slower: str) -> None:
    assert start_shape(8_000_000_000, 32, 4096, faster)[0] < start_shape(8_000_000_000, 32, 4096, slower)[0]


def test_unknown_gpu_and_unknown_model_still_have_a_shape() -> None:
    assert start_shape(0, 0, 0, "Frobnicator 9000", 0) == start_shape(8_000_000_000, 32, 4096, "a100")


@pytest.mark.parametrize("scale", [1 / 8, 0.5, 3.0, 8.0])
def test_a_start_that_is_far_off_is_right_after_ten_samples_of_the_fleet(scale: float) -> None:
    shape, speeds = fleet(5)
    truth = PrefillCost(A * scale, Q * scale, 1.0, 0.01)
    teach(shape, speeds, [truth] * 5, 2)
    assert abs(error(Speed(), shape, truth)) < 0.25


@pytest.mark.parametrize("slowness", [0.25, 0.5, 2.0, 4.0])
def test_a_replica_unlike_its_peers_is_found_within_twenty_requests(slowness: float) -> None:
    shape, speeds = fleet(4)
    truths = [PrefillCost(A, Q, slowness, 0.01), *[PrefillCost(A, Q, 1.0, 0.01)] * 3]
    teach(shape, speeds, truths, 20)
    for speed, truth in zip(speeds, truths, strict=True):
        assert abs(error(speed, shape, truth)) < 0.3


@pytest.mark.parametrize("seed", range(5))
def test_equal_replicas_cost_the_same(seed: int) -> None:
    shape, speeds = fleet(8)
    teach(shape, speeds, [PrefillCost(A * 3, Q * 2, 1.0, 0.02)] * 8, 100, seed=seed)
    costs = [speed.cost(shape).seconds(20_000, 0) for speed in speeds]
    assert max(costs) / min(costs) < 1.01


def test_shape_learns_the_share_of_attention() -> None:
    shape, speeds = fleet(1)
    teach(shape, speeds, [PrefillCost(A, 4 * Q, 1.0, 0.003)], 2000)
    assert shape.a * speeds[0].f == pytest.approx(A, rel=0.15)
    assert shape.q * speeds[0].f == pytest.approx(4 * Q, rel=0.15)


def test_intercept_is_learned_from_short_prompts() -> None:
    shape, speeds = fleet(1)
    truth = PrefillCost(A, Q, 1.0, 0.030)
    teach(shape, speeds, [truth], 100)
    assert speeds[0].cost(shape).b == pytest.approx(0.030, rel=0.2)
    assert abs(error(speeds[0], shape, truth, 20, 0)) < 0.2


def test_a_new_replica_starts_in_the_middle_of_the_fleet() -> None:
    shape, speeds = fleet(4)
    truth = PrefillCost(A, Q, 3.0, 0.01)
    teach(shape, speeds, [truth] * 4, 300)
    assert abs(error(Speed(), shape, truth)) < 0.1


def test_a_replica_without_samples_is_slowly_taken_for_average_again() -> None:
    shape, speeds = fleet(4)
    average = PrefillCost(A, Q, 1.0, 0.01)
    teach(shape, speeds, [PrefillCost(A, Q, 10.0, 0.01), *[average] * 3], 20)
    scarred, *others = speeds
    before = scarred.cost(shape).f
    teach(shape, others, [average] * 3, 10)
    assert scarred.cost(shape).f == pytest.approx(before, rel=0.5)
    teach(shape, others, [average] * 3, 200)
    assert scarred.cost(shape).f < 1.1


def test_a_replica_that_is_still_slow_is_found_again_within_ten() -> None:
    shape, speeds = fleet(4)
    average, slow = PrefillCost(A, Q, 1.0, 0.01), PrefillCost(A, Q, 6.0, 0.01)
    teach(shape, speeds, [slow, *[average] * 3], 20)
    teach(shape, speeds[1:], [average] * 3, 200)
    teach(shape, speeds[:1], [slow], 10)
    assert speeds[0].cost(shape).f * shape.a > 4 * A


def test_nobody_forgets_while_nothing_is_heard_of_anybody() -> None:
    shape, speeds = fleet(2)
    teach(shape, speeds, [PrefillCost(A, Q, 4.0, 0.01), PrefillCost(A, Q, 1.0, 0.01)], 30)
    assert [speed.cost(shape) for speed in speeds] == [speed.cost(shape) for speed in speeds]
    assert speeds[0].cost(shape).f / speeds[1].cost(shape).f > 3


def test_one_wild_sample_changes_little() -> None:
    shape, speeds = fleet(1)
    teach(shape, speeds, [PrefillCost(A, Q, 1.0, 0.01)], 50)
    before = speeds[0].cost(shape).seconds(2000, 0)
    speeds[0].learn(shape, 2000, 0, 500.0)
    assert speeds[0].cost(shape).seconds(2000, 0) < before * 1.15


def test_prompts_that_shared_their_steps_with_others_change_little() -> None:
    """One in four samples took ten times its prefill: none of its own fault."""
    shape, speeds, random = *fleet(4), Random(3)
    truth = PrefillCost(A, Q, 1.0, 0.01)
    for _ in range(200):
        for speed in speeds:
            uncached = random.choice([200, 2000, 10_000])
            factor = 10.0 if random.random() < 0.25 else 1.0
            speed.learn(shape, uncached, 0, truth.seconds(uncached, 0) * factor)
    assert all(-0.05 < error(speed, shape, truth) < 0.5 for speed in speeds)


@pytest.mark.parametrize("wrong", [1 / 25_000, 1 / 300, 8, 200])
def test_on_hardware_that_nobody_named_all_replicas_follow_the_first_samples(wrong: float) -> None:
    """Else one of them learns first, costs nothing next to the others' start, and gets every request."""
    shape, speeds = Shape(A, Q, UNNAMED_VARIANCE), [Speed() for _ in range(3)]
    truth = PrefillCost(A * wrong, Q * wrong, 1.0, 0.003)
    teach(shape, speeds[:1], [truth], 20)
    costs = [speed.cost(shape).seconds(1000, 0) for speed in speeds]
    assert max(costs) / min(costs) < 1.5
    teach(shape, speeds, [truth] * 3, 20)
    assert 0.4 < speeds[1].cost(shape).seconds(1000, 0) / truth.seconds(1000, 0) < 2.5


def test_learned_values_stay_in_their_bounds() -> None:
    for uncached in (1, 5000, 10_000_000):
        for busy_s in (1e-9, 1e9):
            shape, speeds = fleet(2)
            for _ in range(500):
                speeds[0].learn(shape, uncached, 0, busy_s)
            cost = speeds[0].cost(shape)
            assert 1 / MAX_F <= cost.f <= MAX_F
            assert 0 < cost.b <= MAX_B_S
            assert A / SHAPE_RANGE * 0.99 < cost.a < A * SHAPE_RANGE * 1.01
            assert Q / SHAPE_RANGE * 0.99 < cost.q < Q * SHAPE_RANGE * 1.01


@pytest.mark.parametrize(("uncached", "cached", "busy"), [(0, 0, 1.0), (-5, 0, 1.0), (10, -1, 1.0), (10, 0, 0.0)])
def test_senseless_samples_are_ignored(uncached: int, cached: int, busy: float) -> None:
    shape, speeds = fleet(1)
    speeds[0].learn(shape, uncached, cached, busy)
    assert (shape.samples, speeds[0].samples) == (0, 0)


def test_a_replica_with_another_shape_starts_anew() -> None:
    shape, speeds = fleet(2)
    teach(shape, speeds, [PrefillCost(A, Q, 4.0), PrefillCost(A, Q, 1.0)], 20)
    other = Shape(5 * A, Q)
    assert speeds[0].cost(other) == PrefillCost(other.a, other.q, 1.0, other.b)
    speeds[0].learn(other, 1000, 0, 0.5)
    assert speeds[0].samples == 1


def test_a_replica_that_is_gone_is_not_counted() -> None:
    shape, speeds = fleet(3)
    teach(shape, speeds, [PrefillCost(A, Q)] * 3, 1)
    del speeds[1:]
    gc.collect()
    assert shape.replicas == 1


def test_time_is_shared_by_what_was_ahead() -> None:
    assert busy_share(3.0, ahead_s=2.0, own_s=1.0) == pytest.approx(1.0)
    assert busy_share(3.0, ahead_s=0.0, own_s=1.0) == pytest.approx(3.0)
    assert busy_share(3.0, ahead_s=0.0, own_s=0.0) == 0.0


def test_who_mostly_waited_for_others_teaches_nothing() -> None:
    assert busy_share(5.0, ahead_s=4.0, own_s=1.0) == pytest.approx(1.0)
    assert busy_share(60.0, ahead_s=59.0, own_s=1.0) == 0.0
