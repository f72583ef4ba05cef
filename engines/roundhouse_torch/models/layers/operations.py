"""What a device computes beside matrix products, and what it must be told of a batch: interfaces that ``kernels``
implements in PyTorch and in Triton.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from roundhouse_torch.kvcache.storage import KVStorage

if TYPE_CHECKING:
    from roundhouse_torch.models.config import ModelConfig
    from roundhouse_torch.models.layers.rope import Rotation


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


class Operations(Protocol):
    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / rms(x) · weight over the last dimension, with the mean taken in float32."""
        ...

    def add_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`norm` of ``x`` + ``residual``, and the sum is left in ``residual``."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) · up of one tensor that holds both side by side. May change it."""
        ...

    def linear8(self, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """x · (weight · scale)ᵀ for outputs × inputs in 8 bits and one scale per output."""
        ...

    @property
    def keeps_8_bits(self) -> bool:
        """`linear8` is faster than a product with widened weights."""
        ...

    def attention(self, storage: KVStorage, config: "ModelConfig") -> AttentionBackend: ...
