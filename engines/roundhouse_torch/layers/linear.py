"""y = x·W + b."""

from typing import Protocol

import torch


class Projection(Protocol):
    """A `Linear`, or something around one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Linear:
    """``weight`` is inputs × outputs."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)
