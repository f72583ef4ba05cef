"""From logits to tokens.

A random token depends on nothing but logits, the request's seed and the token's absolute position. Order as in vLLM:
what shapes logits (`shaping`), temperature, min-p, top-k, then top-p of what top-k left.
"""

import math
from collections.abc import Sequence as Many
from typing import NamedTuple

import torch

from roundhouse_torch.engine.shaping import shape
from roundhouse_torch.messages.report import TokenLogprobs
from roundhouse_torch.scheduler.sequence import Sequence

_MASK = (1 << 64) - 1


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
    tokens: list[int]
    if all(pick.temperature == 0 for pick in picks):
        tokens = logits.argmax(-1).tolist()
        return tokens
    if logits.is_cuda:
        from roundhouse_torch.kernels.sampling import sample as take
    else:
        from roundhouse_torch.kernels.plain import sample as take

    def column(values: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, device=logits.device, dtype=dtype)

    temperatures = column([pick.temperature for pick in picks], torch.float32)
    least = [pick.temperature * math.log(pick.min_p) if pick.min_p else -torch.inf for pick in picks]
    if max(least) > -torch.inf:
        floor = logits.amax(-1) + column(least, logits.dtype)
        logits.masked_fill_(logits < floor[:, None], -torch.inf)
    tokens = take(
        logits,
        temperatures,
        column([pick.top_k for pick in picks], torch.int32),
        column([pick.top_p for pick in picks], torch.float32),
        column([key(row.sequence.sampling.seed, row.position) - 2**63 for row in rows], torch.int64),
    ).tolist()
    return tokens
