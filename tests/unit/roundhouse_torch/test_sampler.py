"""Sampling: the right distribution, from nothing but seed and position."""

import math
from collections import Counter

import pytest
import torch
from roundhouse_torch.engine import sampler
from roundhouse_torch.engine.sampler import Row, key
from roundhouse_torch.kernels.plain import CANDIDATES
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.scheduler.sequence import Sequence


def sequence(sampling: Sampling, length: int = 1, prompt: int | None = None) -> Sequence:
    result = Sequence(0, [0] * length, sampling, max_length=10**6, root=b"")
    result.prompt_length = length if prompt is None else prompt
    return result


def sample(logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    """One token for each row."""
    for id, one in enumerate(sequences):
        one.id = id
    tokens, _ = sampler.sample(logits, [Row(one) for one in sequences])
    return [tokens[one.id][0] for one in sequences]


def draw(logits: list[float], count: int, **fields: float) -> Counter[int]:
    """``count`` answers' first tokens, seeds 0 to count."""
    rows = torch.tensor([logits] * count)
    return Counter(sample(rows, [sequence(Sampling(seed=seed, **fields)) for seed in range(count)]))  # type: ignore[arg-type]


def close_to(found: Counter[int], probabilities: dict[int, float], count: int) -> bool:
    """Within five standard deviations everywhere, and nothing else."""
    assert set(found) <= set(probabilities)
    return all(abs(found[i] - count * p) <= 5 * math.sqrt(count * p * (1 - p)) + 1 for i, p in probabilities.items())


def test_temperature_zero_takes_the_likeliest() -> None:
    assert sample(torch.tensor([[0.1, 3.0, 2.0]]), [sequence(Sampling(temperature=0))]) == [1]


def test_plain_sampling_follows_the_softmax() -> None:
    probabilities = {0: 0.5, 1: 0.3, 2: 0.2}
    found = draw([math.log(p) for p in probabilities.values()], 4000, temperature=1.0)
    assert close_to(found, probabilities, 4000)


def test_temperature_sharpens() -> None:
    weights = [0.5**2, 0.3**2, 0.2**2]
    probabilities = {i: w / sum(weights) for i, w in enumerate(weights)}
    found = draw([math.log(0.5), math.log(0.3), math.log(0.2)], 4000, temperature=0.5)
    assert close_to(found, probabilities, 4000)


def test_top_k_keeps_the_k_likeliest() -> None:
    found = draw([math.log(p) for p in (0.1, 0.4, 0.2, 0.3)], 4000, top_k=2)
    assert close_to(found, {1: 0.4 / 0.7, 3: 0.3 / 0.7}, 4000)


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    found = draw([math.log(p) for p in (0.1, 0.4, 0.2, 0.3)], 4000, top_p=0.65)
    assert close_to(found, {1: 0.4 / 0.7, 3: 0.3 / 0.7}, 4000)


def test_top_p_counts_within_what_top_k_left() -> None:
    found = draw([math.log(p) for p in (0.1, 0.4, 0.2, 0.3)], 500, top_k=2, top_p=0.55)
    assert set(found) == {1}


def test_the_likeliest_token_survives_a_tiny_top_p() -> None:
    assert set(draw([0.0, 5.0, 1.0], 200, top_p=1e-6)) == {1}


def test_top_p_over_a_flat_vocabulary_larger_than_the_first_candidates() -> None:
    size = CANDIDATES * 4
    logits = torch.zeros(200, size)
    tokens = sample(logits, [sequence(Sampling(seed=seed, top_p=0.999)) for seed in range(200)])
    assert len(set(tokens)) > 150
    assert max(tokens) > CANDIDATES


def test_both_ways_to_sort_give_the_same_tokens() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(64, CANDIDATES * 2, generator=generator) * 4
    sequences = [sequence(Sampling(seed=seed, top_p=0.9)) for seed in range(64)]
    wide = torch.cat((logits, torch.zeros(1, CANDIDATES * 2)))  # the flat row forces a full sort of all rows
    assert sample(logits.clone(), sequences) == sample(wide, [*sequences, sequence(Sampling(top_p=0.99))])[:64]


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 3000, generator=generator)
    kinds = [Sampling(seed=3), Sampling(seed=4, top_k=5), Sampling(temperature=0), Sampling(seed=5, top_p=0.8)] * 2
    sequences = [sequence(kind, length=index + 1) for index, kind in enumerate(kinds[:6])]
    together = sample(logits.clone(), sequences)
    alone = [sample(logits[i : i + 1].clone(), [sequences[i]])[0] for i in range(6)]
    assert together == alone


def test_the_same_seed_and_position_repeat_and_others_differ() -> None:
    values = {key(seed, position) for seed in range(100) for position in range(100)}
    assert len(values) == 10_000
    assert key(7, 3) == key(7, 3)
    assert key(-1, 0) != key(1, 0)


def test_uniform_numbers_are_spread_evenly() -> None:
    values = [key(seed, position) / 2**64 for seed in range(50) for position in range(200)]
    assert all(0 <= value <= 1 for value in values)
    buckets = Counter(int(value * 20) for value in values)
    assert all(abs(buckets[i] - 500) < 5 * math.sqrt(500) for i in range(20))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_end_tokens_wait_for_min_tokens(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, min_tokens=2, eos_ids=frozenset((1,)), stop_ids=frozenset((2,)))
    logits = torch.tensor([[0.0, 50.0, 40.0]])
    assert sample(logits.clone(), [sequence(sampling, length=4, prompt=3)]) == [0]
    assert sample(logits.clone(), [sequence(sampling, length=5, prompt=3)]) == [1]
