"""What the model needs from attention, and what attention must be told of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence in the flattened batch.

    ``start`` tokens before them are in ``blocks`` already; the ``count`` new ones are written there first, then attend
    to all of ``start + count`` up to themselves.
    """

    start: int
    count: int
    blocks: Sequence[int]


class AttentionPass(Protocol):
    """One batch, prepared once and used by every layer."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Tokens × heads × head_dim in, the same shape as ``q`` out. Stores ``k`` and ``v``."""
        ...


class AttentionBackend(Protocol):
    def prepare(self, spans: Sequence[Span]) -> AttentionPass:
        """``spans`` lie in the batch in this order, those of a single token first, the longest of these first."""
        ...
