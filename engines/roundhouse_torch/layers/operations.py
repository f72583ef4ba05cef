"""What a device computes beside matrix products: one interface, in PyTorch here and in Triton in ``kernels``."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.functional import silu

from roundhouse_torch.attention.backend import AttentionBackend
from roundhouse_torch.kvcache.storage import KVStorage

if TYPE_CHECKING:
    from roundhouse_torch.models.config import ModelConfig


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


class TorchOperations:
    """Plain PyTorch: any device."""

    keeps_8_bits = False

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        mean = torch.linalg.vecdot(wide, wide)[..., None] / x.shape[-1]
        normed: torch.Tensor = (wide * mean.add_(eps).rsqrt_()).to(x.dtype).mul_(weight)
        return normed

    def add_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self.norm(residual.add_(x), weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return silu(gate).mul_(up)

    def linear8(self, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return (x @ weight.to(x.dtype).t()).mul_(scales)

    def attention(self, storage: KVStorage, config: "ModelConfig") -> AttentionBackend:
        from roundhouse_torch.attention.paged import PagedAttention

        return PagedAttention(storage, windows(config.windows))


def windows(per_layer: Collection[int]) -> tuple[int, ...]:
    """The distinct ones."""
    return tuple(sorted(set(per_layer)))
