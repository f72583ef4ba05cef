"""Gated feed-forward: down(silu(gate(x)) · up(x)), gate and up in one product."""

from dataclasses import dataclass

import torch

from roundhouse_torch.models.layers.linear import Projection
from roundhouse_torch.models.layers.operations import Operations


@dataclass(frozen=True, slots=True)
class GatedMLP:
    gate_up: Projection
    down: Projection
    operations: Operations

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.operations.silu_mul(self.gate_up(x)))
