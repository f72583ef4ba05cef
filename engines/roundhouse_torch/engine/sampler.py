"""From logits to tokens.

A random token is found by inverting the cumulative distribution at one uniform number, which depends on nothing but
the request's seed and the token's absolute position. Order as in vLLM: what shapes logits (`shaping`), temperature,
min-p, top-k, then top-p of what top-k left.
"""

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


def uniform(seed: int, position: int) -> float:
    """In [0, 1), by two rounds of SplitMix64 (Steele, Lea, Flood 2014)."""
    return _mix(_mix(seed & _MASK) ^ position & _MASK) / 2**64


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
    tokens: list[int] = logits.argmax(-1).tolist()
    random = [index for index, row in enumerate(rows) if row.sequence.sampling.temperature > 0]
    for part, restricted in _split(random, rows):
        picks = [rows[index].sequence.sampling for index in part]
        scaled = logits[part] / _column([pick.temperature for pick in picks], logits)
        if any(pick.min_p for pick in picks):
            least = scaled.amax(-1, keepdim=True) + _column([pick.min_p for pick in picks], logits).log()
            scaled.masked_fill_(scaled < least, -torch.inf)
        at = _column([uniform(rows[i].sequence.sampling.seed, rows[i].position) for i in part], logits, torch.float64)
        chosen = _restricted(scaled, picks, at) if restricted else _invert(scaled.softmax(-1), at)
        for index, token in zip(part, chosen.tolist(), strict=True):
            tokens[index] = token
    return tokens


def _split(random: list[int], rows: Many[Row]) -> list[tuple[list[int], bool]]:
    """Rows that may take any token, and rows that need the likeliest ones in order."""
    plain: list[int] = []
    restricted: list[int] = []
    for index in random:
        sampling = rows[index].sequence.sampling
        (plain if sampling.top_p >= 1 and sampling.top_k <= 0 else restricted).append(index)
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
