"""Root mean square normalisation."""

import torch

from roundhouse_torch.models.layers.operations import Operations


class RMSNorm:
    """See `Operations.norm`."""

    __slots__ = ("_operations", "eps", "weight")

    def __init__(self, weight: torch.Tensor, eps: float, operations: Operations) -> None:
        self.weight = weight
        self.eps = eps
        self._operations = operations

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._operations.norm(x, self.weight, self.eps)

    def after(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Of their sum, which is left in ``residual``."""
        return self._operations.add_norm(x, residual, self.weight, self.eps)
