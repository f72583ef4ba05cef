"""Self-attention: project, rotate, attend over the paged cache, project back."""

from dataclasses import dataclass

import torch

from roundhouse_torch.models.layers.linear import Projection
from roundhouse_torch.models.layers.norm import RMSNorm
from roundhouse_torch.models.layers.operations import AttentionPass
from roundhouse_torch.models.layers.rope import Rotation


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """``qkv`` gives query heads, then key heads, then value heads of ``head_dim`` each.

    ``window``: how many tokens back a token sees, itself included; 0 = all. ``q_norm`` and ``k_norm`` are applied to
    each head before it is rotated.
    """

    layer: int
    qkv: Projection
    out: Projection
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None

    def __call__(self, x: torch.Tensor, rotation: Rotation, attend: AttentionPass) -> torch.Tensor:
        qkv = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        q, k, v = torch.split(qkv, [self.heads, self.kv_heads, self.kv_heads], 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q.contiguous()), self.k_norm(k.contiguous())
        return self.out(attend(self.layer, q, k, v, rotation, self.window).flatten(1))
