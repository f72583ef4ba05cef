"""Guessing changes speed only: the same tokens for the same seeds, and the right distribution over many."""

import math
from collections import Counter

import pytest
import torch
from roundhouse_torch.engine.sampler import Row, sample
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.scheduler.sequence import Sequence
from roundhouse_torch.scheduler.speculation import LONGEST_PAUSE, PAUSE_TOKENS, NgramDrafter, Speculation

VOCABULARY = 8


def sequence(tokens: list[int], **fields: object) -> Sequence:
    return Sequence(0, tokens, Sampling(**fields), max_length=10**6, root=b"")  # type: ignore[arg-type]


def drafts(speculation: Speculation, *sequences: Sequence, budget: int = 100) -> dict[int, list[int]]:
    for id, one in enumerate(sequences):
        one.id = id
    return speculation.drafts(sequences, budget)


def ngram(most: int = 4, max_answers: int = 8) -> Speculation:
    return Speculation(NgramDrafter(), most=most, max_answers=max_answers)


def brute_force(tokens: list[int], most: int) -> list[int]:
    """The longest ending of 4, 3, 2 that occurred before, at its last place; what is behind goes round."""
    for length in (4, 3, 2):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:] and len(tokens) > length:
                follows = tokens[end:]
                return [follows[i % len(follows)] for i in range(most)]
    return []


@pytest.mark.parametrize("seed", range(30))
def test_guesses_are_what_followed_the_longest_known_ending(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, 3, (40,), generator=generator).tolist()
    one, speculation = sequence(tokens[:3]), ngram()
    for token in tokens[3:]:
        expected = brute_force(one.tokens, 4)
        assert drafts(speculation, one).get(0, []) == expected
        one.tokens.append(token)


def test_nobody_guesses_while_many_answers_grow() -> None:
    busy = [sequence([1, 2, 3, 1, 2]) for _ in range(3)]
    assert drafts(ngram(max_answers=2), *busy) == {}
    assert len(drafts(ngram(max_answers=3), *busy)) == 3


def test_guesses_stay_within_the_budget_and_the_answers_length() -> None:
    assert drafts(ngram(), *(sequence([1, 2, 3, 1, 2]) for _ in range(3)), budget=6) == {0: [3, 1, 2, 3], 1: [3, 1]}
    short = sequence([1, 2, 3, 1, 2])
    short.max_length = 7
    assert drafts(ngram(), short) == {0: [3]}
    short.max_length = 6
    assert drafts(ngram(), short) == {}


def test_failing_guesses_pause_longer_each_time_and_a_success_forgives() -> None:
    one, speculation = sequence([1, 2, 3, 1, 2]), ngram()
    pauses = []
    for _ in range(10):
        while not drafts(speculation, one):
            one.tokens += [3, 1, 2]
        at = len(one.tokens)
        speculation.observe(one, 4, 1)
        pauses.append(one.guesses.resume_at - at)
    assert pauses == [min(PAUSE_TOKENS * 2**i, LONGEST_PAUSE) for i in range(10)]
    speculation.observe(one, 4, 4)
    speculation.observe(one, 4, 0)
    assert one.guesses.resume_at - len(one.tokens) == PAUSE_TOKENS


def rows_of(logits: torch.Tensor, one: Sequence, draft: tuple[int, ...]) -> tuple[torch.Tensor, list[Row]]:
    """``logits``: a row for each token that can precede; the model is a bigram."""
    path = [one.tokens[-1], *draft]
    return logits[path].clone(), [Row(one, draft[:ahead]) for ahead in range(len(draft) + 1)]


def generate(logits: torch.Tensor, seed: int, draft: tuple[int, ...], count: int, **fields: object) -> list[int]:
    one = sequence([0], seed=seed, **fields)
    while len(one.tokens) <= count:
        tokens, _ = sample(*rows_of(logits, one, draft))
        one.tokens += tokens[0]
    return one.tokens[1 : count + 1]


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.7}, {"frequency": 0.8}, {"min_p": 0.2}]
)
def test_answers_with_guesses_are_those_without(fields: dict[str, object]) -> None:
    logits = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2
    for seed in range(20):
        plain = generate(logits, seed, (), 12, **fields)
        assert generate(logits, seed, (3, 1, 3), 12, **fields) == plain
        assert generate(logits, seed, tuple(plain[:4]), 12, **fields) == plain


def test_sampled_pairs_are_distributed_as_the_model_says() -> None:
    """Chi-square over the first two tokens under a guess that is often right."""
    logits = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(2))
    count = 4000
    found = Counter(tuple(generate(logits, seed, (int(logits[0].argmax()), 2), 2)) for seed in range(count))
    first = logits[0].softmax(-1)
    second = logits.softmax(-1)
    expected = {(a, b): count * float(first[a] * second[a, b]) for a in range(VOCABULARY) for b in range(VOCABULARY)}
    assert min(expected.values()) > 1
    statistic = sum((found[pair] - value) ** 2 / value for pair, value in expected.items())
    degrees = VOCABULARY**2 - 1
    assert statistic < degrees + 4 * math.sqrt(2 * degrees)  # one run in 10,000 would be above


def test_log_probabilities_come_for_accepted_tokens_only() -> None:
    logits = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))
    one = sequence([0], temperature=0.0, logprobs=1)
    right, wrong = int(logits[0].argmax()), int(logits[0].argmin())
    tokens, told = sample(*rows_of(logits, one, (right, wrong, wrong)))
    assert tokens == {0: [right, int(logits[right].argmax())]}
    assert [entry.top[0][0] for entry in told[0]] == tokens[0]
    tokens, told = sample(*rows_of(logits, one, (wrong, right)))
    assert tokens == {0: [right]}
    assert len(told[0]) == 1
