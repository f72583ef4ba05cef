"""Paged attention over block-major KV storage ``[block][layer][key|value][slot][kv head][dim]``.

*Mixed batches* (`attend`): one program per Q block and KV head. A Q block is a few consecutive tokens of one sequence
times all query heads that share a KV head, so each tile of keys is loaded once for the whole group. Which sequence a
block belongs to is found by binary search, so the host never waits for the device.

*Decode* (`attend_decode`): one token per sequence leaves most of the GPU idle, so the context is split over programs;
each leaves a partial sum, maximum and accumulator, and a second kernel merges them (flash decoding).

The running maximum starts at a finite number: a row whose tiles are all masked yields zeros, never NaN.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@triton.jit
def _tile(
    cache, table, positions, visible, value_offset, block_stride, head, dims, dim_ok,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Keys and values at ``positions`` (tokens × dims each); a position that is not ``visible`` reads as 0."""
    blocks = tl.load(table + positions // BLOCK_SIZE, mask=visible, other=0).to(tl.int64)
    rows = blocks * block_stride + (positions % BLOCK_SIZE) * (KV_HEADS * HEAD_DIM) + head * HEAD_DIM
    offsets = rows[:, None] + dims[None, :]
    mask = visible[:, None] & dim_ok[None, :]
    keys = tl.load(cache + offsets, mask=mask, other=0.0)
    values = tl.load(cache + value_offset + offsets, mask=mask, other=0.0)
    return keys, values


@triton.jit
def _fold(q, keys, values, seen, scale, highest, total, acc):
    """One step of the online softmax: fold a tile into the running maximum, sum and accumulator."""
    scores = tl.dot(q, tl.trans(keys), out_dtype=tl.float32) * scale
    scores = tl.where(seen, scores, -1.0e30)
    new = tl.maximum(highest, tl.max(scores, axis=1))
    weights = tl.where(seen, tl.exp(scores - new[:, None]), 0.0)
    shrink = tl.exp(highest - new)
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(values.dtype), values, out_dtype=tl.float32)
    return new, total, acc


@triton.jit
def mixed_kernel(
    out, q, cache, tables, starts, lengths, scale, key_scale, value_scale, sequences, table_stride, block_stride,
    value_offset,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """``starts``: prefix sums of new tokens (sequences + 1); ``lengths``: context with the new tokens, per sequence."""
    QUERIES: tl.constexpr = ROWS // GROUP
    block = tl.program_id(0)
    head = tl.program_id(1)
    low = 0
    high = sequences
    while low < high:  # the last sequence whose first Q block is not after this one
        middle = (low + high) // 2
        if tl.load(starts + middle) // QUERIES + middle <= block:
            low = middle + 1
        else:
            high = middle
    sequence = low - 1
    start = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - start
    first = (block - (start // QUERIES + sequence)) * QUERIES
    if first >= count:
        return
    length = tl.load(lengths + sequence)
    rows = tl.arange(0, ROWS)
    token = first + rows // GROUP
    row_ok = (rows < QUERIES * GROUP) & (token < count)
    dims = tl.arange(0, DIM)
    dim_ok = dims < HEAD_DIM
    heads = head * GROUP + rows % GROUP
    offsets = ((start + token) * (KV_HEADS * GROUP) + heads).to(tl.int64)[:, None] * HEAD_DIM + dims[None, :]
    mask = row_ok[:, None] & dim_ok[None, :]
    query = tl.load(q + offsets, mask=mask, other=0.0)
    place = length - count + token

    highest = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    end = tl.minimum(length, length - count + first + QUERIES)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(0, length - count + first - WINDOW + 1) // TILE * TILE
    for at in range(begin, end, TILE):
        positions = at + tl.arange(0, TILE)
        keys, values = _tile(
            cache, tables + sequence * table_stride, positions, positions < end, value_offset, block_stride, head, dims,
            dim_ok, BLOCK_SIZE, KV_HEADS, HEAD_DIM,
        )  # fmt: skip
        seen = row_ok[:, None] & (positions[None, :] <= place[:, None])
        if WINDOW > 0:
            seen = seen & (positions[None, :] > place[:, None] - WINDOW)
        highest, total, acc = _fold(
            query, keys.to(query.dtype), values.to(query.dtype), seen, scale * key_scale, highest, total, acc
        )
    acc = acc * value_scale / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out + offsets, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def decode_kernel(
    partial, highs, sums, q, cache, tables, lengths, scale, key_scale, table_stride, block_stride, value_offset,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """One split of one sequence's context for one KV head; ``partial`` is [sequence][head][split][DIM] in fp32."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths + sequence)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(0, length - WINDOW)
    tiles = tl.cdiv(tl.cdiv(length - begin, TILE), SPLITS)
    first = begin + split * tiles * TILE
    end = tl.minimum(length, first + tiles * TILE)

    rows = tl.arange(0, ROWS)
    row_ok = rows < GROUP
    dims = tl.arange(0, DIM)
    dim_ok = dims < HEAD_DIM
    heads = (sequence * (KV_HEADS * GROUP) + head * GROUP + rows).to(tl.int64)
    query = tl.load(q + heads[:, None] * HEAD_DIM + dims[None, :], mask=row_ok[:, None] & dim_ok[None, :], other=0.0)
    highest = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for at in range(first, end, TILE):
        positions = at + tl.arange(0, TILE)
        keys, values = _tile(
            cache, tables + sequence * table_stride, positions, positions < end, value_offset, block_stride, head, dims,
            dim_ok, BLOCK_SIZE, KV_HEADS, HEAD_DIM,
        )  # fmt: skip
        seen = row_ok[:, None] & (positions < end)[None, :]
        highest, total, acc = _fold(
            query, keys.to(query.dtype), values.to(query.dtype), seen, scale * key_scale, highest, total, acc
        )
    place = heads * SPLITS + split
    tl.store(partial + place[:, None] * DIM + dims[None, :], acc, mask=row_ok[:, None])
    tl.store(highs + place, highest, mask=row_ok)
    tl.store(sums + place, total, mask=row_ok)


@triton.jit
def merge_kernel(
    out, partial, highs, sums, value_scale, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr
):
    """Merge the splits of one head of one sequence."""
    head = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, DIM)
    high = tl.load(highs + head * SPLITS + splits)
    weight = tl.exp(high - tl.max(high, axis=0))
    total = tl.sum(tl.load(sums + head * SPLITS + splits) * weight, axis=0)
    parts = tl.load(partial + (head * SPLITS + splits)[:, None] * DIM + dims[None, :])
    result = tl.sum(parts * weight[:, None], axis=0) * value_scale / tl.where(total > 0.0, total, 1.0)
    tl.store(out + head * HEAD_DIM + dims, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer of the storage. ``tensor`` is [block][layer][2][slot][kv head][dim], contiguous.

    ``key_scale`` and ``value_scale`` undo the scaling of an fp8 cache; 1 otherwise.
    """

    tensor: torch.Tensor
    layer: int
    key_scale: float = 1.0
    value_scale: float = 1.0

    @property
    def flat(self) -> torch.Tensor:
        """The storage from this layer's keys on."""
        return self.tensor[:, self.layer]

    @property
    def block_size(self) -> int:
        return int(self.tensor.shape[3])

    @property
    def kv_heads(self) -> int:
        return int(self.tensor.shape[4])

    @property
    def value_offset(self) -> int:
        return int(self.tensor.stride(2))


@dataclass(frozen=True, slots=True)
class Scratch:
    """Room for partial results of `attend_decode`: allocate once for the largest batch, so CUDA graphs can replay."""

    partial: torch.Tensor
    highs: torch.Tensor
    sums: torch.Tensor

    @classmethod
    def allocate(cls, sequences: int, heads: int, head_dim: int, splits: int, device: torch.device) -> "Scratch":
        dim = triton.next_power_of_2(head_dim)
        shape = (sequences, heads, splits)
        return cls(
            torch.empty(*shape, dim, device=device, dtype=torch.float32),
            torch.empty(shape, device=device, dtype=torch.float32),
            torch.empty(shape, device=device, dtype=torch.float32),
        )

    @property
    def splits(self) -> int:
        return int(self.highs.shape[2])


def attend(
    q: torch.Tensor, cache: Cache, tables: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, *, window: int = 0
) -> torch.Tensor:
    """Causal attention of a flattened batch whose keys and values are in the cache already.

    Args:
        q: tokens × heads × dim. tables: sequences × blocks (int32). starts: sequences + 1 prefix sums of new tokens
            (int32). lengths: tokens in the cache per sequence, new ones included (int32). window: how many tokens back
            a token sees, itself included; 0 = all.
    """
    tokens, heads, head_dim = q.shape
    group = heads // cache.kv_heads
    rows = max(16, triton.next_power_of_2(group))
    if tokens > 4 * tables.shape[0]:  # prefill: enough rows to keep the tensor cores busy
        rows = max(64, rows)
    queries = rows // group
    out = torch.empty_like(q)
    grid = (tokens // queries + tables.shape[0], cache.kv_heads)
    mixed_kernel[grid](
        out, q, cache.flat, tables, starts, lengths, head_dim**-0.5, cache.key_scale, cache.value_scale,
        tables.shape[0], tables.stride(0), cache.tensor.stride(0), cache.value_offset, GROUP=group,
        KV_HEADS=cache.kv_heads, HEAD_DIM=head_dim, DIM=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=cache.block_size, ROWS=rows, TILE=32, WINDOW=window,
    )  # fmt: skip
    return out


def attend_decode(
    q: torch.Tensor, cache: Cache, tables: torch.Tensor, lengths: torch.Tensor, scratch: Scratch, *, window: int = 0
) -> torch.Tensor:
    """`attend` for a batch of one token per sequence; ``scratch`` must fit the batch."""
    sequences, heads, head_dim = q.shape
    group = heads // cache.kv_heads
    dim = triton.next_power_of_2(head_dim)
    out = torch.empty_like(q)
    decode_kernel[(sequences, cache.kv_heads, scratch.splits)](
        scratch.partial, scratch.highs, scratch.sums, q, cache.flat, tables, lengths, head_dim**-0.5, cache.key_scale,
        tables.stride(0), cache.tensor.stride(0), cache.value_offset, GROUP=group, KV_HEADS=cache.kv_heads,
        HEAD_DIM=head_dim, DIM=dim, BLOCK_SIZE=cache.block_size, ROWS=max(16, triton.next_power_of_2(group)), TILE=16,
        SPLITS=scratch.splits, WINDOW=window,
    )  # fmt: skip
    merge_kernel[(sequences * heads,)](
        out, scratch.partial, scratch.highs, scratch.sums, cache.value_scale, HEAD_DIM=head_dim, DIM=dim,
        SPLITS=scratch.splits,
    )  # fmt: skip
    return out
