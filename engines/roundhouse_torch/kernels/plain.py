"""PyTorch alone, on any device: the CPU path, and the reference of the other kernels.

Attention gathers a sequence's blocks into one piece, then takes ``scaled_dot_product_attention``. Single-token spans
(decode) are computed in groups of similar length, padded to the longest and masked; the query heads that share a key
head go in as rows of that head. Longer spans (prefill chunks) are computed one by one; one that starts at 0 needs no
gather. Index tensors of all layers are made at once per batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention, silu

from roundhouse_torch.kvcache.storage import KVStorage
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.layers.operations import Span
from roundhouse_torch.models.layers.rope import Rotation, rotate

CANDIDATES = 1024
"""Tokens sorted at first for top-p; the whole vocabulary is sorted only when these do not reach p."""
GROUP_TOKENS = 16_384
"""Most tokens gathered at once for a decode group: bounds the scratch memory."""
GROUP_PADDING = 0.75
"""A sequence joins a decode group when it is at least this long, as a share of the group's longest."""


class TorchOperations:
    """See `Operations`."""

    keeps_8_bits = False

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        mean = torch.linalg.vecdot(wide, wide)[..., None] / x.shape[-1]
        normed: torch.Tensor = (wide * mean.add_(eps).rsqrt_()).to(x.dtype).mul_(weight)
        return normed

    def add_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self.norm(residual.add_(x), weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return silu(gate).mul_(up)

    def linear8(self, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return (x @ weight.to(x.dtype).t()).mul_(scales)

    def attention(self, storage: KVStorage, config: ModelConfig) -> "PagedAttention":
        return PagedAttention(storage, sorted(set(config.windows)))


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows ``first`` to ``first + rows`` of the batch; ``blocks``: per layer, rows · width piece numbers, padded with
    piece 0; ``masks``: per window.
    """

    first: int
    rows: int
    blocks: Sequence[torch.Tensor]
    masks: Mapping[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """``blocks`` None: nothing came before, so keys and values of the batch itself are all there is."""

    first: int
    rows: int
    length: int
    blocks: Sequence[torch.Tensor] | None
    masks: Mapping[int, torch.Tensor]


class Scratch:
    """Two growing buffers that gathers write to: fresh memory for each layer costs twice the copy itself."""

    def __init__(self, storage: KVStorage) -> None:
        self._storage = storage
        self._source = storage.pieces
        self._buffers = (
            self._source.new_empty(0, self._source.shape[1]),
            self._source.new_empty(0, self._source.shape[1]),
        )

    def gather(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of ``blocks`` (piece numbers of the keys, then of the values)."""
        count = blocks.shape[0] // 2
        if count > self._buffers[0].shape[0]:
            width = self._source.shape[1]
            self._buffers = (self._source.new_empty(count, width), self._source.new_empty(count, width))
        keys, values = self._buffers[0][:count], self._buffers[1][:count]
        torch.index_select(self._source, 0, blocks[:count], out=keys)
        torch.index_select(self._source, 0, blocks[count:], out=values)
        return self._storage.unpacked(keys), self._storage.unpacked(values)


class PagedPass:
    """One prepared batch. ``slots``: per layer, the slot numbers of all tokens' keys, then of their values."""

    def __init__(
        self,
        storage: KVStorage,
        scratch: Scratch,
        slots: Sequence[torch.Tensor],
        groups: list[DecodeGroup],
        prefills: list[PrefillSpan],
    ) -> None:
        self._storage = storage
        self._scratch = scratch
        self._slots = slots
        self._groups = groups
        self._prefills = prefills

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rotation: Rotation, window: int
    ) -> torch.Tensor:
        qk = rotate(torch.cat((q, k), 1), rotation)
        q, k = qk[:, : q.shape[1]], qk[:, q.shape[1] :]
        new = self._storage.packed(torch.cat((k, v)).flatten(1))
        self._storage.slots.index_copy_(0, self._slots[layer], new)
        if len(self._groups) == 1 and not self._prefills:
            return self._decode(layer, self._groups[0], q, window)
        k, v = self._storage.unpacked(new).view(2, *k.shape).unbind()
        out = torch.empty_like(q)
        for group in self._groups:
            rows = slice(group.first, group.first + group.rows)
            out[rows] = self._decode(layer, group, q[rows], window)
        for span in self._prefills:
            rows = slice(span.first, span.first + span.rows)
            out[rows] = self._prefill(layer, span, q[rows], k[rows], v[rows], window)
        return out

    def _decode(self, layer: int, group: DecodeGroup, q: torch.Tensor, window: int) -> torch.Tensor:
        heads, dim = self._storage.kv_heads, self._storage.head_dim
        keys, values = self._scratch.gather(group.blocks[layer])
        shape = (group.rows, -1, heads, dim)
        result = scaled_dot_product_attention(
            q.view(group.rows, heads, -1, dim),
            keys.view(shape).transpose(1, 2),
            values.view(shape).transpose(1, 2),
            attn_mask=group.masks[window],
        )
        return result.flatten(1, 2)

    def _prefill(
        self, layer: int, span: PrefillSpan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int
    ) -> torch.Tensor:
        if span.blocks is not None:
            keys, values = self._scratch.gather(span.blocks[layer])
            k = keys.view(-1, *k.shape[1:])[: span.length]
            v = values.view(-1, *v.shape[1:])[: span.length]
        result = scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=span.masks[window],
            enable_gqa=True,
        )
        return result[0].transpose(0, 1)


class PagedAttention:
    """Makes `PagedPass`es over one storage. Not thread safe: the scratch buffers are shared.

    ``windows``: the distinct ones of the model's layers.
    """

    def __init__(self, storage: KVStorage, windows: Sequence[int] = (0,)) -> None:
        self._storage = storage
        self._windows = windows
        self._scratch = Scratch(storage)

    def prepare(self, spans: Sequence[Span]) -> PagedPass:
        singles = next((i for i, span in enumerate(spans) if span.count > 1), len(spans))
        prefills, first = [], singles
        for span in spans[singles:]:
            prefills.append(self._prefill(span, first))
            first += span.count
        slots = self._per_layer(
            slot_numbers(spans, self._storage), self._storage.slots_per_layer, self._storage.block_size
        )
        return PagedPass(self._storage, self._scratch, slots, self._groups(spans[:singles]), prefills)

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
        lengths = np.array([span.start + 1 for span in spans])[:, None]
        masks = self._masks(np.arange(width * self._storage.block_size), lengths - 1)
        return DecodeGroup(
            first,
            len(spans),
            self._pieces(table.reshape(-1)),
            {window: mask[:, None, None, :] for window, mask in masks.items()},
        )

    def _prefill(self, span: Span, first: int) -> PrefillSpan:
        length = span.start + span.count
        masks = self._masks(np.arange(length), np.arange(span.start, length)[:, None])
        if span.start == 0:
            return PrefillSpan(first, span.count, length, None, masks)
        blocks = np.asarray(span.blocks[: -(-length // self._storage.block_size)])
        return PrefillSpan(first, span.count, length, self._pieces(blocks), masks)

    def _pieces(self, blocks: np.ndarray) -> Sequence[torch.Tensor]:
        return self._per_layer(blocks * self._storage.pieces_per_block, self._storage.pieces_per_layer, 1)

    def _per_layer(self, numbers: np.ndarray, per_layer: int, to_values: int) -> Sequence[torch.Tensor]:
        """``numbers`` of layer 0's keys → for each layer, those of its keys and then those of its values."""
        both = np.concatenate((numbers, numbers + to_values))
        every = both + per_layer * np.arange(self._storage.layers)[:, None]
        return torch.from_numpy(every.astype(np.int64, copy=False)).to(self._storage.device).unbind()

    def _masks(self, keys: np.ndarray, queries: np.ndarray) -> dict[int, torch.Tensor]:
        """Per window, 0 where a query at a position sees a key at a position and −∞ elsewhere."""
        masks = {}
        for window in self._windows:
            hidden = keys > queries
            if window:
                hidden |= keys <= queries - window
            values = np.where(hidden, np.float32(-math.inf), np.float32(0.0))
            masks[window] = torch.from_numpy(values).to(self._storage.device, self._storage.compute_dtype)
        return masks


def slot_numbers(spans: Sequence[Span], storage: KVStorage) -> np.ndarray:
    """Of every token's keys in layer 0."""
    size, stride = storage.block_size, storage.slots_per_block
    parts: list[np.ndarray | list[int]] = []
    for span in spans:
        if span.count == 1:
            parts.append([span.blocks[span.start // size] * stride + span.start % size])
        else:
            positions = np.arange(span.start, span.start + span.count)
            parts.append(np.asarray(span.blocks)[positions // size] * stride + positions % size)
    return np.concatenate(parts)


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, seeds: torch.Tensor
) -> torch.Tensor:
    """One token id per row of ``logits`` (rows × vocabulary): the likeliest when its temperature is 0, else the one at
    which the cumulative distribution reaches a number between 0 and 1 that the seed gives.
    """
    greedy, vocabulary = temperatures <= 0, logits.shape[-1]
    tokens = logits.argmax(-1) if bool(greedy.any()) else torch.empty_like(seeds)
    top_ks = torch.where((top_ks > 0) & (top_ks < vocabulary), top_ks, vocabulary)
    cut = (top_ks < vocabulary) | (top_ps < 1)
    columns = temperatures[:, None], top_ks[:, None], top_ps[:, None], (seeds.double() / 2.0**64 + 0.5)[:, None]
    for restricted, rows in ((True, ~greedy & cut), (False, ~greedy & ~cut)):
        if bool(rows.any()):
            temperature, top_k, top_p, at = (column[rows] for column in columns)
            scaled = logits[rows] / temperature
            tokens[rows] = _restricted(scaled, top_k, top_p, at) if restricted else _invert(scaled.softmax(-1), at)
    return tokens


def _restricted(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, at: torch.Tensor, candidates: int = CANDIDATES
) -> torch.Tensor:
    """Of tokens in order of likelihood, those within top-k whose predecessors hold less than top-p."""
    vocabulary = scaled.shape[-1]
    width = min(vocabulary, int(torch.where(top_k < vocabulary, top_k, candidates).max()))
    values, indices = scaled.topk(width, -1)
    ranks = torch.arange(width, device=scaled.device)
    values = values.masked_fill(ranks >= top_k, -torch.inf)
    total = torch.where(top_k < vocabulary, values.logsumexp(-1, keepdim=True), scaled.logsumexp(-1, keepdim=True))
    probabilities = (values - total).exp()
    before = probabilities.cumsum(-1) - probabilities
    short = (before[:, -1:] + probabilities[:, -1:] < top_p) & (top_k == vocabulary)
    if width < vocabulary and bool(short.any()):
        return _restricted(scaled, top_k, top_p, at, vocabulary)
    kept = probabilities.masked_fill((before >= top_p) & (ranks > 0), 0.0)
    return indices.gather(-1, _invert(kept, at)[:, None])[:, 0]


def _invert(weights: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The first column whose cumulative weight exceeds ``at`` times the whole."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cumulative, at * cumulative[:, -1:], right=True).clamp_(max=weights.shape[-1] - 1)[:, 0]
