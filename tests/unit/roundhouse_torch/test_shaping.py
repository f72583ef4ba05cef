"""What shapes logits, beside transformers' own processors; what it tells of probabilities, beside torch."""

import math

import pytest
import torch
from roundhouse_torch.engine.sampler import Row, draw, sample
from roundhouse_torch.engine.shaping import shape
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.scheduler.sequence import Sequence
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

VOCABULARY = 60


def sequence(id: int, prompt: list[int], answer: list[int], **fields: object) -> Sequence:
    made = Sequence(id, [*prompt, *answer], Sampling(**fields), max_length=10**6, root=b"")  # type: ignore[arg-type]
    made.prompt_length = len(prompt)
    return made


def random_tokens(count: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def test_repetition_penalty_is_that_of_transformers_over_prompt_and_answer() -> None:
    sequences = [sequence(i, random_tokens(5, i), random_tokens(i, 9 + i), repetition=1.0 + i / 4) for i in range(1, 6)]
    logits = random_logits(5)
    shaped = logits.clone()
    shape(shaped, [Row(one) for one in sequences])
    for row, one in enumerate(sequences):
        penalty = RepetitionPenaltyLogitsProcessor(one.sampling.repetition)
        expected = penalty(torch.tensor([one.tokens]), logits[row : row + 1].clone())
        torch.testing.assert_close(shaped[row : row + 1], expected)


def test_presence_and_frequency_count_the_answer_only() -> None:
    """OpenAI's formula: logit − count · frequency − (count > 0) · presence."""
    answer = random_tokens(40, 1)
    one = sequence(0, random_tokens(30, 2), answer, presence=0.7, frequency=-0.4)
    logits = random_logits(1)
    shaped = logits.clone()
    shape(shaped, [Row(one)])
    for token in range(VOCABULARY):
        expected = logits[0, token] + 0.4 * answer.count(token) - 0.7 * (token in answer)
        assert shaped[0, token] == pytest.approx(float(expected), abs=1e-5)


def test_penalties_follow_an_answer_as_it_grows() -> None:
    grown, new = sequence(0, [1, 2], [], repetition=1.3, frequency=0.5), random_tokens(12, 3)
    for token in new:
        shape(random_logits(1), [Row(grown)])
        grown.tokens.append(token)
    fresh = sequence(1, [1, 2], new, repetition=1.3, frequency=0.5)
    logits = random_logits(1).repeat(2, 1)
    shape(logits, [Row(grown), Row(fresh)])
    torch.testing.assert_close(logits[0], logits[1])


def test_a_guess_ahead_counts_as_if_it_were_the_answer() -> None:
    fields = {"repetition": 1.3, "frequency": 0.5, "presence": 0.2}
    before, after = sequence(0, [1, 2], [5, 6], **fields), sequence(1, [1, 2], [5, 6, 5, 9], **fields)
    logits = random_logits(1).repeat(2, 1)
    shape(logits, [Row(before, (5, 9)), Row(after)])
    torch.testing.assert_close(logits[0], logits[1])


def test_bias_is_that_of_transformers() -> None:
    bias = {3: 2.5, 17: -100.0, 59: 0.25}
    logits = random_logits(2)
    shaped = logits.clone()
    shape(shaped, [Row(sequence(0, [1], [], bias=bias)), Row(sequence(1, [1], []))])
    processor = SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])
    torch.testing.assert_close(shaped[:1], processor(torch.tensor([[1]]), logits[:1].clone()))
    assert torch.equal(shaped[1], logits[1])


@pytest.mark.parametrize("min_p", [0.02, 0.3, 1.0])
def test_min_p_leaves_what_transformers_leaves(min_p: float) -> None:
    logits = random_logits(1, 4)
    kept = MinPLogitsWarper(min_p)(torch.tensor([[0]]), logits / 0.8)[0].isfinite().nonzero()[:, 0].tolist()
    rows = [Row(sequence(i, [1], [], min_p=min_p, temperature=0.8, seed=i)) for i in range(3000)]
    found = set(draw(logits.repeat(3000, 1), rows))
    assert found <= set(kept)
    probabilities = LogitsProcessorList([MinPLogitsWarper(min_p)])(torch.tensor([[0]]), logits / 0.8).softmax(-1)[0]
    assert {token for token in kept if probabilities[token] > 0.01} <= found


def test_rows_without_wishes_are_left_as_they_are_beside_rows_with_all() -> None:
    everything = {"repetition": 1.5, "presence": 1.0, "bias": {4: 9.0}, "min_tokens": 5, "eos_ids": frozenset((7,))}
    rows = [Row(sequence(0, [1], [2])), Row(sequence(1, [1], [2], **everything)), Row(sequence(2, [3], []))]
    logits = random_logits(3)
    shaped = logits.clone()
    shape(shaped, rows)
    assert torch.equal(shaped[[0, 2]], logits[[0, 2]])
    assert shaped[1, 7] == -math.inf


def test_log_probabilities_are_those_before_anything_shaped_the_logits() -> None:
    fields = {"bias": {11: 100.0}, "temperature": 0.0}
    rows = [Row(sequence(i, [1], [], logprobs=wanted, **fields)) for i, wanted in enumerate((0, 3, None, 5))]
    logits = random_logits(4)
    expected = logits.log_softmax(-1)
    tokens, told = sample(logits.clone(), rows)
    assert tokens == {i: [11] for i in range(4)}
    assert set(told) == {0, 1, 3}
    for row, count in ((0, 0), (1, 3), (3, 5)):
        (one,) = told[row]
        assert one.chosen == pytest.approx(float(expected[row, 11]))
        values, ids = expected[row].topk(count)
        assert [id for id, _ in one.top] == ids.tolist()
        assert [value for _, value in one.top] == pytest.approx(values.tolist())
