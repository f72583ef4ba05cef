"""From logits to tokens.

A random token depends on nothing but logits, the request's seed and the token's absolute position: on CPU it is found
by inverting the cumulative distribution at one uniform number, on CUDA by a kernel that adds Gumbel noise. Order as in
vLLM: what shapes logits (`shaping`), temperature, min-p, top-k, then top-p of what top-k left.
"""

import math
from collections.abc import Sequence as Many
from typing import NamedTuple

import torch

from roundhouse_torch.engine.shaping import shape
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.messages.report import TokenLogprobs
from roundhouse_torch.scheduler.sequence import Sequence

_MASK = (1 << 64) - 1
CANDIDATES = 1024
"""Tokens sorted at first for top-p; the whole vocabulary is sorted only when these do not reach p."""


def key(seed: int, position: int) -> int:
    """64 random bits, by two rounds of SplitMix64 (Steele, Lea, Flood 2014)."""
    return _mix(_mix(seed & _MASK) ^ position & _MASK)


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31


class Row(NamedTuple):
    """Draw the token behind ``sequence`` and the guesses ``ahead``."""

    sequence: Sequence
    ahead: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        return len(self.sequence.tokens) + len(self.ahead)


def sample(logits: torch.Tensor, rows: Many[Row]) -> tuple[dict[int, list[int]], dict[int, list[TokenLogprobs]]]:
    """New tokens by sequence id, and their log-probabilities where asked for. Changes ``logits``.

    The rows of one sequence follow each other; a row counts when the rows before it drew what it has ``ahead``.
    """
    telling = [index for index, row in enumerate(rows) if row.sequence.sampling.logprobs is not None]
    unshaped = logits[telling] if telling else None
    shape(logits, rows)
    drawn = draw(logits, rows)
    tokens: dict[int, list[int]] = {}
    counting = []
    for row, token in zip(rows, drawn, strict=True):
        new = tokens.setdefault(row.sequence.id, [])
        counting.append(tuple(new) == row.ahead)
        if counting[-1]:
            new.append(token)
    if unshaped is None:
        return tokens, {}
    told: dict[int, list[TokenLogprobs]] = {}
    for index, one in zip(telling, tell(unshaped, telling, rows, drawn), strict=True):
        if counting[index]:
            told.setdefault(rows[index].sequence.id, []).append(one)
    return tokens, told


def tell(logits: torch.Tensor, telling: Many[int], rows: Many[Row], drawn: Many[int]) -> list[TokenLogprobs]:
    """Before anything shaped them: what the model itself thinks, as in vLLM."""
    likely = logits.float().log_softmax(-1)
    chosen = likely.gather(-1, torch.tensor([[drawn[index]] for index in telling], device=logits.device))
    wanted = [rows[index].sequence.sampling.logprobs or 0 for index in telling]
    values, ids = likely.topk(max(wanted), -1)
    return [
        TokenLogprobs(first, list(zip(found[:count], value[:count], strict=True)))
        for (first,), found, value, count in zip(chosen.tolist(), ids.tolist(), values.tolist(), wanted, strict=True)
    ]


def draw(logits: torch.Tensor, rows: Many[Row]) -> list[int]:
    """One token for each row."""
    picks = [row.sequence.sampling for row in rows]
    unlikely = [index for index, pick in enumerate(picks) if pick.min_p and pick.temperature > 0]
    if unlikely:
        below = _column([picks[index].temperature * math.log(picks[index].min_p) for index in unlikely], logits)
        part = logits[unlikely]
        logits[unlikely] = part.masked_fill_(part < part.amax(-1, keepdim=True) + below, -torch.inf)
    random = [index for index, pick in enumerate(picks) if pick.temperature > 0]
    if random and logits.is_cuda:
        return draw_by_kernel(logits, rows)
    tokens: list[int] = logits.argmax(-1).tolist()
    likeliest = [index for index in random if picks[index].top_p < 1 or picks[index].top_k > 0]
    for indices in filter(None, (likeliest, sorted(set(random) - set(likeliest)))):
        scaled = logits[indices] / _column([picks[index].temperature for index in indices], logits)
        numbers = [key(picks[index].seed, rows[index].position) / 2**64 for index in indices]
        at = _column(numbers, logits, torch.float64)
        if indices is likeliest:
            chosen = _restricted(scaled, [picks[index] for index in indices], at)
        else:
            chosen = _invert(scaled.softmax(-1), at)
        for index, token in zip(indices, chosen.tolist(), strict=True):
            tokens[index] = token
    return tokens


def draw_by_kernel(logits: torch.Tensor, rows: Many[Row]) -> list[int]:
    """All rows at once, without sorting; see `kernels.sampling`. Other tokens for a seed than on CPU."""
    from roundhouse_torch.kernels.sampling import sample as launch

    picks = [row.sequence.sampling for row in rows]
    columns = (
        torch.tensor([pick.temperature for pick in picks], device=logits.device),
        torch.tensor([pick.top_k for pick in picks], device=logits.device, dtype=torch.int32),
        torch.tensor([pick.top_p for pick in picks], device=logits.device),
        torch.tensor([key(row.sequence.sampling.seed, row.position) - 2**63 for row in rows], device=logits.device),
    )
    tokens: list[int] = launch(logits.contiguous(), *columns).tolist()
    return tokens


def _restricted(
    scaled: torch.Tensor, samplings: Many[Sampling], at: torch.Tensor, candidates: int = CANDIDATES
) -> torch.Tensor:
    """Of tokens in order of likelihood, those within top-k whose predecessors hold less than top-p."""
    vocabulary = scaled.shape[-1]
    top_k = [pick.top_k if 0 < pick.top_k < vocabulary else vocabulary for pick in samplings]
    width = min(vocabulary, max(candidates if k == vocabulary else k for k in top_k))
    limits, top_p = _column(top_k, scaled), _column([pick.top_p for pick in samplings], scaled)
    values, indices = scaled.topk(width, -1)
    ranks = torch.arange(width, device=scaled.device)
    values = values.masked_fill(ranks >= limits, -torch.inf)
    total = torch.where(limits < vocabulary, values.logsumexp(-1, keepdim=True), scaled.logsumexp(-1, keepdim=True))
    probabilities = (values - total).exp()
    before = probabilities.cumsum(-1) - probabilities
    short = (before[:, -1:] + probabilities[:, -1:] < top_p) & (limits == vocabulary)
    if width < vocabulary and bool(short.any()):
        return _restricted(scaled, samplings, at, vocabulary)
    kept = probabilities.masked_fill((before >= top_p) & (ranks > 0), 0.0)
    return indices.gather(-1, _invert(kept, at)[:, None])[:, 0]


def _invert(weights: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The first column whose cumulative weight exceeds ``at`` times the whole."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cumulative, at * cumulative[:, -1:], right=True).clamp_(max=weights.shape[-1] - 1)[:, 0]


def _column(values: Many[float], like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, device=like.device, dtype=dtype or like.dtype)[:, None]
