"""What prefill costs: start values from physics, and what samples make of them."""

import math
from random import Random

import pytest
from roundhouse_gateway.learning import MAX_B_S, MAX_F, Shape, Speed, busy_share, start_shape
from roundhouse_gateway.pick import PrefillCost


def test_start_shape_of_a_70b_on_eight_a100_is_what_was_measured() -> None:
    a, q = start_shape(70_000_000_000, 80, 8192, "NVIDIA-A100-SXM4-80GB")
    assert a / 8 == pytest.approx(1.1e-4, rel=0.05)
    assert q / 8 == pytest.approx(2.1e-9, rel=0.05)


@pytest.mark.parametrize(
    ("faster", "slower"), [("H100", "A100"), ("nvidia-h200", "l4"), ("A10G", ""), ("b200", "H100"), ("L40S", "T4")]
)
def test_start_shape_follows_the_gpu(faster: str, slower: str) -> None:
    assert start_shape(8_000_000_000, 32, 4096, faster)[0] < start_shape(8_000_000_000, 32, 4096, slower)[0]


def test_unknown_gpu_and_unknown_model_still_have_a_shape() -> None:
    assert start_shape(0, 0, 0, "Frobnicator 9000") == start_shape(8_000_000_000, 32, 4096, "a100")


@pytest.mark.parametrize("slowness", [0.05, 0.5, 1.0, 3.0, 20.0])
def test_factor_converges_to_the_replicas_own(slowness: float) -> None:
    shape, speed, random = Shape(1e-4, 2e-9), Speed(), Random(1)
    for _ in range(200):
        uncached, cached = random.randrange(500, 8000), random.randrange(0, 20_000)
        truth = PrefillCost(1e-4, 2e-9, slowness, 0.004)
        speed.learn(shape, uncached, cached, truth.seconds(uncached, cached) * random.uniform(0.9, 1.1))
    predicted = speed.cost(shape).seconds(4000, 1000)
    assert predicted == pytest.approx(PrefillCost(1e-4, 2e-9, slowness, 0.004).seconds(4000, 1000), rel=0.15)


def test_intercept_is_learned_from_short_prompts() -> None:
    shape, speed = Shape(1e-5, 1e-11), Speed()
    for _ in range(100):
        speed.learn(shape, 20, 0, 0.030)
    assert speed.b == pytest.approx(0.030, rel=0.1)
    assert speed.f == 1.0


def test_one_wild_sample_changes_little() -> None:
    shape, speed = Shape(1e-4, 2e-9), Speed()
    for _ in range(50):
        speed.learn(shape, 2000, 0, 0.21)
    before = speed.f
    speed.learn(shape, 2000, 0, 500.0)
    assert speed.f < before * math.exp(0.11)


def test_learned_values_stay_in_their_bounds() -> None:
    shape, speed = Shape(1e-4, 2e-9), Speed()
    for _ in range(1000):
        speed.learn(shape, 5000, 0, 1e6)
    assert speed.f <= MAX_F
    other = Speed()
    for _ in range(1000):
        other.learn(shape, 1, 0, 1e6)
    assert other.b <= MAX_B_S


@pytest.mark.parametrize(("uncached", "busy"), [(0, 1.0), (-5, 1.0), (10, 0.0), (10, -1.0)])
def test_senseless_samples_are_ignored(uncached: int, busy: float) -> None:
    shape, speed = Shape(1e-4, 2e-9), Speed()
    speed.learn(shape, uncached, 0, busy)
    shape.learn(uncached, 0, busy)
    assert (speed.f, speed.samples) == (1.0, 0)


def test_shape_learns_the_share_of_attention() -> None:
    shape, random = Shape(1e-4, 2e-9), Random(2)
    truth = PrefillCost(1e-4, 8e-9)
    for _ in range(4000):
        uncached, cached = random.choice([200, 2000, 20_000]), random.choice([0, 50_000])
        shape.learn(uncached, cached, truth.seconds(uncached, cached) * random.uniform(0.95, 1.05))
    assert shape.a == pytest.approx(1e-4, rel=0.15)
    assert shape.q == pytest.approx(8e-9, rel=0.15)


def test_shape_stays_when_all_prompts_are_alike() -> None:
    shape = Shape(1e-4, 2e-9)
    for _ in range(500):
        shape.learn(1000, 0, 5.0)
    assert (shape.a, shape.q) == (1e-4, 2e-9)


def test_time_is_shared_by_what_was_ahead() -> None:
    assert busy_share(3.0, ahead_s=2.0, own_s=1.0) == pytest.approx(1.0)
    assert busy_share(3.0, ahead_s=0.0, own_s=1.0) == pytest.approx(3.0)
    assert busy_share(3.0, ahead_s=0.0, own_s=0.0) == 0.0
