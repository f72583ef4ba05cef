"""Self-attention: project, rotate, attend over the paged cache, project back."""

import torch

from roundhouse_torch.attention.backend import AttentionPass
from roundhouse_torch.layers.linear import Projection
from roundhouse_torch.layers.rope import Rotation, rotate


class SelfAttention:
    """``qkv`` gives query heads, then key heads, then value heads of ``head_dim`` each."""

    __slots__ = ("_head_dim", "_heads", "_kv_heads", "_layer", "_out", "_qkv")

    def __init__(
        self, layer: int, qkv: Projection, out: Projection, *, heads: int, kv_heads: int, head_dim: int
    ) -> None:
        self._layer = layer
        self._qkv = qkv
        self._out = out
        self._heads = heads
        self._kv_heads = kv_heads
        self._head_dim = head_dim

    def __call__(self, x: torch.Tensor, rotation: Rotation, attend: AttentionPass) -> torch.Tensor:
        qkv = self._qkv(x).view(x.shape[0], -1, self._head_dim)
        qk = rotate(qkv[:, : self._heads + self._kv_heads], rotation)
        q, k, v = qk[:, : self._heads], qk[:, self._heads :], qkv[:, self._heads + self._kv_heads :]
        return self._out(attend(self._layer, q, k, v).flatten(1))
