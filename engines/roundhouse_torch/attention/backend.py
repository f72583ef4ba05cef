"""What the model needs from attention, and what attention must be told of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from roundhouse_torch.layers.rope import Rotation


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

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rotation: "Rotation", window: int
    ) -> torch.Tensor:
        """Tokens × heads × head_dim in, the same shape as ``q`` out.

        Rotates ``q`` and ``k``, stores keys and values, and attends to ``window`` tokens back (0 = all).
        """
        ...


class AttentionBackend(Protocol):
    def prepare(self, spans: Sequence[Span]) -> AttentionPass:
        """``spans`` lie in the batch in this order, those of a single token first, the longest of these first."""
        ...
