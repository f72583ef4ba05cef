"""Gated feed-forward: down(silu(gate(x)) · up(x)), gate and up in one product."""

import torch
from torch.nn.functional import silu

from roundhouse_torch.layers.linear import Projection


class GatedMLP:
    __slots__ = ("_down", "_gate_up")

    def __init__(self, gate_up: Projection, down: Projection) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, -1)
        return self._down(silu(gate).mul_(up))
