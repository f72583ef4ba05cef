"""The Triton kernels behind the interfaces of `Operations` and `AttentionBackend`.

Device tensors of a batch (tables, lengths, slots) are made once per step; the same attention pass serves eager steps
and, over fixed buffers, captured graphs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from roundhouse_torch.kernels import activation, gemm, norm
from roundhouse_torch.kernels.attention import Cache, Scratch, attend, attend_decode
from roundhouse_torch.kernels.rope import rotate_and_store
from roundhouse_torch.kvcache.storage import KVStorage
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.layers.operations import Span
from roundhouse_torch.models.layers.rope import Rotation

SPLITS = 16
"""Parts of a context that are attended to at once while decoding."""
SPLIT_SEQUENCES = 64
"""Decode batches above this fill the device without splitting."""


class TritonOperations:
    """See `Operations`."""

    keeps_8_bits = True

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return norm.rms_norm(x.reshape(-1, x.shape[-1]), weight, eps).view_as(x)

    def add_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return norm.rms_norm(x, weight, eps, residual)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return activation.silu_mul(gate_up)

    def linear8(self, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return gemm.quantised_linear(x, weight, scales)

    def attention(self, storage: KVStorage, config: ModelConfig) -> "TritonAttention":
        return TritonAttention(storage, config.num_heads * storage.kv_heads // config.num_kv_heads)


@dataclass(frozen=True, slots=True)
class TritonPass:
    """One prepared batch: ``slots`` per token; ``tables``, ``starts`` and ``lengths`` per sequence.

    ``decode``: one token per sequence, few enough sequences to split their contexts.
    """

    storage: KVStorage
    scratch: Scratch
    slots: torch.Tensor
    tables: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    decode: bool

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rotation: Rotation, window: int
    ) -> torch.Tensor:
        cache = Cache(self.storage.tensor, layer)
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        rotate_and_store(q, k, v, rotation.cos_table, rotation.sin_table, rotation.positions, self.slots, cache)
        if self.decode:
            return attend_decode(q, cache, self.tables, self.lengths, self.scratch, window=window)
        return attend(q, cache, self.tables, self.starts, self.lengths, window=window)


class TritonAttention:
    """Makes `TritonPass`es over one storage. ``heads``: query heads of this process."""

    def __init__(self, storage: KVStorage, heads: int) -> None:
        self.storage = storage
        self._scratch = Scratch.allocate(SPLIT_SEQUENCES, heads, storage.head_dim, SPLITS, storage.device)

    def prepare(self, spans: Sequence[Span]) -> TritonPass:
        width = max(-(-(span.start + span.count) // self.storage.block_size) for span in spans)
        return self.over(batch_arrays(spans, self.storage.block_size, width), decode=all(s.count == 1 for s in spans))

    def over(self, arrays: "BatchArrays", *, decode: bool) -> TritonPass:
        slots, tables, starts, lengths = (
            torch.from_numpy(array).to(self.storage.device, non_blocking=True)
            for array in (arrays.slots, arrays.tables, arrays.starts, arrays.lengths)
        )
        return self.of(slots, tables, starts, lengths, decode=decode)

    def of(
        self, slots: torch.Tensor, tables: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, *, decode: bool
    ) -> TritonPass:
        split = decode and tables.shape[0] <= SPLIT_SEQUENCES
        return TritonPass(self.storage, self._scratch, slots, tables, starts, lengths, split)


@dataclass(frozen=True, slots=True)
class BatchArrays:
    """What kernels are told of a batch, on the host."""

    slots: np.ndarray
    tables: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


def batch_arrays(spans: Sequence[Span], block_size: int, width: int, rows: int | None = None) -> BatchArrays:
    """``width``: blocks per row of the tables. Sequences up to ``rows`` write nothing and see one slot."""
    rows = rows or len(spans)
    tables = np.zeros((rows, width), np.int32)
    lengths = np.ones(rows, np.int32)
    starts = np.arange(rows + 1, dtype=np.int32)
    slots = []
    for row, span in enumerate(spans):
        end = span.start + span.count
        used = -(-end // block_size)
        tables[row, :used] = span.blocks[:used]
        lengths[row] = end
        starts[row + 1] = starts[row] + span.count
        positions = np.arange(span.start, end)
        slots.append(tables[row][positions // block_size].astype(np.int64) * block_size + positions % block_size)
    starts[len(spans) + 1 :] = starts[len(spans)] + np.arange(1, rows - len(spans) + 1)
    slots.append(np.full(rows - len(spans), -1, np.int64))
    return BatchArrays(np.concatenate(slots), tables, starts, lengths)
