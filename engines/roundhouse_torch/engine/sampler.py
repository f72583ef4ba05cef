"""From logits to tokens.

A random token is found by inverting the cumulative distribution at one uniform number, which depends on nothing but
the request's seed and the token's absolute position. Order of restrictions as in vLLM: temperature, top-k, then
top-p of what top-k left.
"""

from collections.abc import Sequence as Many

import torch

from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.scheduler.sequence import Sequence

_MASK = (1 << 64) - 1
CANDIDATES = 1024
"""Tokens sorted at first for top-p; the whole vocabulary is sorted only when these do not reach p."""


def uniform(seed: int, position: int) -> float:
    """In [0, 1), by two rounds of SplitMix64 (Steele, Lea, Flood 2014)."""
    return _mix(_mix(seed & _MASK) ^ position & _MASK) / 2**64


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31


def sample(logits: torch.Tensor, sequences: Many[Sequence]) -> list[int]:
    """One token for each row. Changes ``logits``."""
    for row, sequence in enumerate(sequences):
        if sequence.generated < sequence.sampling.min_tokens:
            logits[row, sorted(sequence.sampling.eos_ids | sequence.sampling.stop_ids)] = -torch.inf
    tokens: list[int] = logits.argmax(-1).tolist()
    drawn = [row for row, sequence in enumerate(sequences) if sequence.sampling.temperature > 0]
    for rows, restricted in _split(drawn, sequences):
        picks = [sequences[row] for row in rows]
        scaled = logits[rows] / _column([pick.sampling.temperature for pick in picks], logits)
        at = _column([uniform(pick.sampling.seed, len(pick.tokens)) for pick in picks], logits, torch.float64)
        chosen = (
            _restricted(scaled, [pick.sampling for pick in picks], at)
            if restricted
            else _invert(scaled.softmax(-1), at)
        )
        for row, token in zip(rows, chosen.tolist(), strict=True):
            tokens[row] = token
    return tokens


def _split(rows: list[int], sequences: Many[Sequence]) -> list[tuple[list[int], bool]]:
    """Rows that may take any token, and rows that need the likeliest ones in order."""
    plain: list[int] = []
    restricted: list[int] = []
    for row in rows:
        sampling = sequences[row].sampling
        (plain if sampling.top_p >= 1 and sampling.top_k <= 0 else restricted).append(row)
    return [(part, flag) for part, flag in ((plain, False), (restricted, True)) if part]


def _restricted(scaled: torch.Tensor, samplings: Many[Sampling], at: torch.Tensor) -> torch.Tensor:
    """Of tokens in order of likelihood, those within top-k whose predecessors hold less than top-p."""
    vocabulary = scaled.shape[-1]
    top_k = [sampling.top_k if 0 < sampling.top_k < vocabulary else vocabulary for sampling in samplings]
    width = max((k for k in top_k if k < vocabulary), default=0)
    if any(k == vocabulary for k in top_k):
        width = min(vocabulary, max(width, CANDIDATES))
    values, indices = scaled.topk(width, -1)
    limits = _column(top_k, scaled)
    top_p = _column([sampling.top_p for sampling in samplings], scaled)
    ranks = torch.arange(width, device=scaled.device)
    values = values.masked_fill(ranks >= limits, -torch.inf)
    total = torch.where(limits < vocabulary, values.logsumexp(-1, keepdim=True), scaled.logsumexp(-1, keepdim=True))
    probabilities = (values - total).exp()
    before = probabilities.cumsum(-1) - probabilities
    if width < vocabulary and bool(((before[:, -1:] + probabilities[:, -1:] < top_p) & (limits == vocabulary)).any()):
        return _sorted_all(scaled, limits, top_p, at)
    kept = probabilities.masked_fill((before >= top_p) & (ranks > 0), 0.0)
    return indices.gather(-1, _invert(kept, at)[:, None])[:, 0]


def _sorted_all(scaled: torch.Tensor, limits: torch.Tensor, top_p: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    values, indices = scaled.sort(-1, descending=True)
    ranks = torch.arange(values.shape[-1], device=scaled.device)
    probabilities = values.masked_fill(ranks >= limits, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    kept = probabilities.masked_fill((before >= top_p) & (ranks > 0), 0.0)
    return indices.gather(-1, _invert(kept, at)[:, None])[:, 0]


def _invert(weights: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The first column whose cumulative weight exceeds ``at`` times the whole."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cumulative, at * cumulative[:, -1:], right=True).clamp_(max=weights.shape[-1] - 1)[:, 0]


def _column(values: Many[float], like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, device=like.device, dtype=dtype or like.dtype)[:, None]
