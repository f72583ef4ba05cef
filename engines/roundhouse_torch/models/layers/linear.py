"""y = x·W + b."""

from dataclasses import dataclass
from typing import Protocol

import torch

from roundhouse_torch.models.layers.operations import Operations


class Projection(Protocol):
    """A `Linear`, or something around one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """``weight`` is inputs × outputs."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)


class PackedLinear:
    """For wide outputs in float32 on CPU: weights in oneDNN's own blocked layout, so that a small batch streams them
    from memory in order. Narrow ones are faster by `Linear`, whose call costs less.
    """

    __slots__ = ("_bias", "_weight")

    ROWS = 16
    """Batch that the layout is chosen for; the library takes any."""
    WIDE = 2048

    def __init__(self, stored: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """``stored`` is outputs × inputs."""
        self._weight = torch.ops.mkldnn._reorder_linear_weight(stored.contiguous(), self.ROWS)
        self._bias = bias

    @staticmethod
    def pays(device: torch.device, dtype: torch.dtype, outputs: int) -> bool:
        if outputs < PackedLinear.WIDE or device.type != "cpu" or dtype != torch.float32:
            return False
        return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


@dataclass(frozen=True, slots=True)
class Linear8:
    """``weight`` is outputs × inputs in 8 bits with one scale per output."""

    weight: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None
    operations: Operations

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.operations.linear8(x, self.weight, self.scales)
        return out if self.bias is None else out.add_(self.bias)
