"""Attention in plain PyTorch: gather a sequence's blocks into one piece, then ``scaled_dot_product_attention``.

Runs on any device; it is the CPU path and the reference for kernels. Single-token spans (decode) are computed in
groups of similar length, padded to the longest and masked; the query heads that share a key head go in as rows of
that head. Longer spans (prefill chunks) are computed one by one; one that starts at 0 needs no gather.
Index tensors are made once per batch and moved to a layer by adding a constant.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from roundhouse_torch.attention.backend import Span
from roundhouse_torch.kvcache.storage import KVStorage

GROUP_TOKENS = 16_384
"""Most tokens gathered at once for a decode group: bounds the scratch memory."""
GROUP_PADDING = 0.75
"""A sequence joins a decode group when it is at least this long, as a share of the group's longest."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows ``first`` to ``first + rows`` of the batch; ``blocks``: rows · width piece numbers, padded with piece 0."""

    first: int
    rows: int
    blocks: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """``blocks`` None: nothing came before, so keys and values of the batch itself are all there is."""

    first: int
    rows: int
    length: int
    blocks: torch.Tensor | None
    mask: torch.Tensor


class Scratch:
    """Two growing buffers that gathers write to: fresh memory for each layer costs twice the copy itself."""

    def __init__(self, storage: KVStorage) -> None:
        self._source = storage.pieces
        self._buffers = (
            self._source.new_empty(0, self._source.shape[1]),
            self._source.new_empty(0, self._source.shape[1]),
        )

    def gather(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of ``blocks`` (piece numbers of the keys; values lie one piece further)."""
        count = blocks.shape[0]
        if count > self._buffers[0].shape[0]:
            width = self._source.shape[1]
            self._buffers = (self._source.new_empty(count, width), self._source.new_empty(count, width))
        keys, values = self._buffers[0][:count], self._buffers[1][:count]
        torch.index_select(self._source, 0, blocks, out=keys)
        torch.index_select(self._source, 0, blocks + 1, out=values)
        return keys, values


class PagedPass:
    """One prepared batch. ``slots`` are the slot numbers of layer 0's keys, one per token."""

    def __init__(
        self,
        storage: KVStorage,
        scratch: Scratch,
        slots: torch.Tensor,
        groups: list[DecodeGroup],
        prefills: list[PrefillSpan],
    ) -> None:
        self._storage = storage
        self._scratch = scratch
        self._slots = slots
        self._groups = groups
        self._prefills = prefills

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self._store(layer, k, v)
        out = torch.empty_like(q)
        for group in self._groups:
            rows = slice(group.first, group.first + group.rows)
            out[rows] = self._decode(layer, group, q[rows])
        for span in self._prefills:
            rows = slice(span.first, span.first + span.rows)
            out[rows] = self._prefill(layer, span, q[rows], k[rows], v[rows])
        return out

    def _store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        slots = self._slots + layer * self._storage.slots_per_layer
        self._storage.slots.index_copy_(0, slots, k.flatten(1))
        self._storage.slots.index_copy_(0, slots + self._storage.block_size, v.flatten(1))

    def _decode(self, layer: int, group: DecodeGroup, q: torch.Tensor) -> torch.Tensor:
        heads, dim = self._storage.kv_heads, self._storage.head_dim
        keys, values = self._scratch.gather(group.blocks + layer * self._storage.pieces_per_layer)
        shape = (group.rows, -1, heads, dim)
        result = scaled_dot_product_attention(
            q.view(group.rows, heads, -1, dim),
            keys.view(shape).transpose(1, 2),
            values.view(shape).transpose(1, 2),
            attn_mask=group.mask,
        )
        return result.view_as(q)

    def _prefill(
        self, layer: int, span: PrefillSpan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        if span.blocks is not None:
            keys, values = self._scratch.gather(span.blocks + layer * self._storage.pieces_per_layer)
            k = keys.view(-1, *k.shape[1:])[: span.length]
            v = values.view(-1, *v.shape[1:])[: span.length]
        result = scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=span.mask,
            enable_gqa=True,
        )
        return result[0].transpose(0, 1)


class PagedAttention:
    """Makes `PagedPass`es over one storage. Not thread safe: the scratch buffers are shared."""

    def __init__(self, storage: KVStorage) -> None:
        self._storage = storage
        self._scratch = Scratch(storage)

    def prepare(self, spans: Sequence[Span]) -> PagedPass:
        singles = next((i for i, span in enumerate(spans) if span.count > 1), len(spans))
        prefills, first = [], singles
        for span in spans[singles:]:
            prefills.append(self._prefill(span, first))
            first += span.count
        return PagedPass(self._storage, self._scratch, self._slots(spans), self._groups(spans[:singles]), prefills)

    def _slots(self, spans: Sequence[Span]) -> torch.Tensor:
        """Block number and offset of every token, as slot numbers of layer 0's keys."""
        size, stride = self._storage.block_size, self._storage.slots_per_block
        parts: list[np.ndarray | list[int]] = []
        for span in spans:
            if span.count == 1:
                parts.append([span.blocks[span.start // size] * stride + span.start % size])
            else:
                positions = np.arange(span.start, span.start + span.count)
                parts.append(np.asarray(span.blocks)[positions // size] * stride + positions % size)
        return self._tensor(np.concatenate(parts))

    def _groups(self, spans: Sequence[Span]) -> list[DecodeGroup]:
        groups, first = [], 0
        while first < len(spans):
            width = self._width(spans[first])
            limit = max(1, GROUP_TOKENS // (width * self._storage.block_size))
            end = first + 1
            while end < len(spans) and end - first < limit and self._width(spans[end]) >= GROUP_PADDING * width:
                end += 1
            groups.append(self._group(spans[first:end], first, width))
            first = end
        return groups

    def _width(self, span: Span) -> int:
        return span.start // self._storage.block_size + 1

    def _group(self, spans: Sequence[Span], first: int, width: int) -> DecodeGroup:
        table = np.zeros((len(spans), width), dtype=np.int64)
        for row, span in enumerate(spans):
            used = self._width(span)
            table[row, :used] = span.blocks[:used]
        lengths = np.array([span.start + 1 for span in spans])
        hidden = np.arange(width * self._storage.block_size) >= lengths[:, None]
        mask = _additive(hidden)[:, None, None, :]
        pieces = self._tensor(table.reshape(-1) * self._storage.pieces_per_block)
        return DecodeGroup(first, len(spans), pieces, self._mask(mask))

    def _prefill(self, span: Span, first: int) -> PrefillSpan:
        length = span.start + span.count
        hidden = np.arange(length) > np.arange(span.start, length)[:, None]
        mask = self._mask(_additive(hidden))
        if span.start == 0:
            return PrefillSpan(first, span.count, length, None, mask)
        blocks = np.asarray(span.blocks[: -(-length // self._storage.block_size)]) * self._storage.pieces_per_block
        return PrefillSpan(first, span.count, length, self._tensor(blocks), mask)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64, copy=False)).to(self._storage.device)

    def _mask(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(device=self._storage.device, dtype=self._storage.dtype)


def _additive(hidden: np.ndarray) -> np.ndarray:
    return np.where(hidden, np.float32(-math.inf), np.float32(0.0))
