"""Root mean square normalisation."""

import torch


class RMSNorm:
    """x / rms(x) · weight, with the mean taken in float32 whatever the type of ``x``."""

    __slots__ = ("eps", "weight")

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(self.eps))
        return (wide * scale).to(x.dtype) * self.weight
