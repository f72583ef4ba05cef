"""Rotary position embedding, in the half-rotation layout of Hugging Face checkpoints."""

import torch

from roundhouse_torch.models.config import RopeScaling

Rotation = tuple[torch.Tensor, torch.Tensor]


class Rope:
    """cos and sin for every position up to ``length``, made once; ``at`` picks a batch's rows for all layers."""

    __slots__ = ("_cos", "_sin")

    def __init__(
        self, scaling: RopeScaling, head_dim: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        frequencies = torch.tensor(scaling.inverse_frequencies(head_dim), dtype=torch.float32)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
        self._cos = angles.cos().to(device=device, dtype=dtype)
        self._sin = angles.sin().to(device=device, dtype=dtype)

    def at(self, positions: torch.Tensor) -> Rotation:
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """``x``: tokens × heads × head_dim."""
    cos, sin = rotation
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
