"""What a request does to logits before a token is drawn: grammar, min_tokens, logit_bias, penalties.

Each works on the rows that use it, all at once. Penalties need to know which tokens were there before: two vectors over
the vocabulary for each request that uses them, brought up to date at each draw, so that long answers cost no more.
"""

from collections.abc import Sequence as Many
from typing import TYPE_CHECKING

import torch

from roundhouse_torch.engine.grammar import restrict

if TYPE_CHECKING:
    from roundhouse_torch.engine.sampler import Row


class History:
    """``seen``: tokens of prompt and answer; ``counts``: how often each is in the answer."""

    __slots__ = ("counts", "length", "seen")

    def __init__(self, vocabulary: int, device: torch.device, prompt: Many[int]) -> None:
        self.counts = torch.zeros(vocabulary, device=device)
        self.seen = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self.seen[torch.tensor(prompt, device=device)] = True
        self.length = len(prompt)

    def add(self, tokens: Many[int]) -> None:
        ids = torch.tensor(tokens, dtype=torch.long, device=self.counts.device)
        self.counts.index_add_(0, ids, torch.ones_like(ids, dtype=self.counts.dtype))
        self.seen[ids] = True
        self.length += len(tokens)


def shape(logits: torch.Tensor, rows: "Many[Row]") -> None:
    """In place, in vLLM's order."""
    constrained: list[int] = []
    penalised: list[int] = []
    added: list[tuple[int, int, float]] = []
    for index, (sequence, ahead) in enumerate(rows):
        sampling = sequence.sampling
        if sequence.constraint is not None:
            constrained.append(index)
        if sampling.min_tokens > sequence.generated + len(ahead):
            added += [(index, id, -torch.inf) for id in sampling.ends]
        if sampling.bias:
            added += [(index, id, value) for id, value in sampling.bias.items()]
        if sampling.penalised:
            penalised.append(index)
    if constrained:
        restrict(logits, rows, constrained)
    if added:
        where, ids, values = (torch.tensor(column, device=logits.device) for column in zip(*added, strict=True))
        logits.index_put_((where, ids), values.to(logits.dtype), accumulate=True)
    if penalised:
        logits[penalised] = _penalise(logits[penalised], [rows[index] for index in penalised])


def _penalise(logits: torch.Tensor, rows: "list[Row]") -> torch.Tensor:
    """Repetition divides (multiplies, when negative) whatever was there before, prompt included; frequency and
    presence take from what the answer has.
    """
    counts, seen = zip(*(_history(row, logits) for row in rows), strict=True)
    often = torch.stack(counts)
    repetition, frequency, presence = (
        torch.tensor([getattr(row.sequence.sampling, name) for row in rows], device=logits.device)[:, None]
        for name in ("repetition", "frequency", "presence")
    )
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    return torch.where(torch.stack(seen), scaled, logits) - frequency * often - presence * (often > 0)


def _history(row: "Row", like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    sequence, ahead = row
    if sequence.history is None:
        sequence.history = History(like.shape[-1], like.device, sequence.tokens[: sequence.prompt_length])
    known: History = sequence.history
    if known.length < len(sequence.tokens):
        known.add(sequence.tokens[known.length :])
    if not ahead:
        return known.counts, known.seen
    guessed = History(like.shape[-1], like.device, ahead)
    guessed.add(ahead)
    return known.counts + guessed.counts, known.seen | guessed.seen
