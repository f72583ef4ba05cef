"""Copies between the cache and the host's memory: a block is one contiguous piece in both."""

from collections.abc import Sequence

import torch

from roundhouse_torch.kvcache.host import Move
from roundhouse_torch.kvcache.storage import KVStorage


class BlockMover:
    """Pinned memory on CUDA, so that the host does not wait; same stream as the arithmetic, so in order."""

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
