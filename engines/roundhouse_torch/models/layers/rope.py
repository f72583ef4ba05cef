"""Rotary position embedding, in the half-rotation layout of Hugging Face checkpoints."""

from dataclasses import dataclass

import torch

from roundhouse_torch.models.config import RopeScaling


@dataclass(frozen=True, slots=True)
class Rotation:
    """A batch's rows of the tables: tokens × 1 × head_dim / 2 each, and the same for whole heads.

    ``whole_cos`` is cos twice; ``whole_sin`` is −sin, then sin. ``positions`` index ``cos_table`` and ``sin_table``,
    for kernels that look up themselves.
    """

    whole_cos: torch.Tensor
    whole_sin: torch.Tensor
    positions: torch.Tensor
    cos_table: torch.Tensor
    sin_table: torch.Tensor

    @classmethod
    def of(cls, cos_table: torch.Tensor, sin_table: torch.Tensor, positions: torch.Tensor) -> "Rotation":
        cos, sin = cos_table[positions].unsqueeze(1), sin_table[positions].unsqueeze(1)
        return cls(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1), positions, cos_table, sin_table)


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
        return Rotation.of(self._cos, self._sin, positions)


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """``x``: tokens × heads × head_dim."""
    half = x.shape[-1] // 2
    turned = torch.cat((x[..., half:], x[..., :half]), -1)
    return torch.addcmul(x * rotation.whole_cos, turned, rotation.whole_sin)
