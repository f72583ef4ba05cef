"""The memory of the KV cache: one tensor, block-major, all layers of a block together.

``[block][layer][key|value][slot][kv head][dim]``: a block is one contiguous piece, so that it moves to another tier or
another engine in one copy. Two flat views serve the arithmetic:

* a *slot* is one token's keys (or values) in one layer: row ``((block · layers + layer) · 2 + is_value) ·
  block_size + offset``;
* a *piece* is all slots of a block, keys or values, in one layer: row ``(block · layers + layer) · 2 + is_value``.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from roundhouse_torch.kvcache.host import Move

FP8 = torch.float8_e4m3fn
_FP8_MAX = 448.0


class KVStorage:
    """Zeroed, because masked slots take part in arithmetic and must be finite; on CPU untouched pages cost nothing.

    ``dtype`` is what is stored, ``compute_dtype`` what it is computed with. fp8 is stored without a scale (keys and
    values of these models lie well within ±448) and moved as bytes, since PyTorch does not index it.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        self.block_size = block_size
        self.layers = layers
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.device = device
        self.dtype = dtype
        self.compute_dtype = compute_dtype or dtype
        self.tensor = _zeros((blocks, layers, 2, block_size, kv_heads, head_dim), device, dtype)
        moved = self.tensor.view(torch.uint8) if dtype == FP8 else self.tensor
        self.blocks = moved.view(blocks, -1)
        self.slots = moved.view(blocks * layers * 2 * block_size, kv_heads * head_dim)
        self.pieces = moved.view(blocks * layers * 2, block_size * kv_heads * head_dim)
        self.slots_per_layer = 2 * block_size
        self.slots_per_block = layers * self.slots_per_layer
        self.pieces_per_layer = 2
        self.pieces_per_block = layers * self.pieces_per_layer

    def packed(self, values: torch.Tensor) -> torch.Tensor:
        """As `slots` and `pieces` hold them."""
        if self.dtype != FP8:
            return values
        return values.clamp(-_FP8_MAX, _FP8_MAX).to(FP8).view(torch.uint8)

    def unpacked(self, stored: torch.Tensor) -> torch.Tensor:
        return stored.view(FP8).to(self.compute_dtype) if self.dtype == FP8 else stored


class BlockMover:
    """Copies between the cache and the host's memory: a block is one contiguous piece in both.

    Pinned memory on CUDA, so that the host does not wait; same stream as the arithmetic, so in order.
    """

    def __init__(self, storage: KVStorage, slots: int) -> None:
        self._blocks = storage.blocks
        pinned = storage.device.type == "cuda"
        self._host = torch.empty((slots, self._blocks.shape[1]), dtype=self._blocks.dtype, pin_memory=pinned)

    def run(self, moves: Sequence[Move]) -> None:
        for move in moves:
            if move.to_host:
                self._host[move.slot].copy_(self._blocks[move.block], non_blocking=True)
            else:
                self._blocks[move.block].copy_(self._host[move.slot], non_blocking=True)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """On CPU by way of numpy, which leaves zeroing to the operating system, page by page at first use."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
