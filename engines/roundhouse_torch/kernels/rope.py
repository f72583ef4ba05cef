"""Rotary embedding of queries and keys, and the write of keys and values into their cache slots, in one pass."""

import torch
import triton
import triton.language as tl

from roundhouse_torch.kernels.attention import Cache


@triton.jit
def rope_kernel(
    q, k, v, cos, sin, positions, slots, cache, block_stride, value_offset, key_scale, value_scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One program per token and head: heads below ``HEADS`` are queries, rotated in place; the rest are KV heads.

    ``slots``: block · block size + offset of each token; −1 = do not write (padding of a captured graph).
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, HALF)
    mask = dims < HEAD_DIM // 2
    position = tl.load(positions + token).to(tl.int64)
    c = tl.load(cos + position * (HEAD_DIM // 2) + dims, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin + position * (HEAD_DIM // 2) + dims, mask=mask, other=0.0).to(tl.float32)
    if head < HEADS:
        base = q + (token * HEADS + head) * HEAD_DIM
        low = tl.load(base + dims, mask=mask, other=0.0).to(tl.float32)
        high = tl.load(base + HEAD_DIM // 2 + dims, mask=mask, other=0.0).to(tl.float32)
        tl.store(base + dims, (low * c - high * s).to(q.dtype.element_ty), mask=mask)
        tl.store(base + HEAD_DIM // 2 + dims, (high * c + low * s).to(q.dtype.element_ty), mask=mask)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        if slot >= 0:
            source = (token * KV_HEADS + head - HEADS) * HEAD_DIM
            target = (
                cache + (slot // BLOCK_SIZE) * block_stride + ((slot % BLOCK_SIZE) * KV_HEADS + head - HEADS) * HEAD_DIM
            )
            low = tl.load(k + source + dims, mask=mask, other=0.0).to(tl.float32)
            high = tl.load(k + source + HEAD_DIM // 2 + dims, mask=mask, other=0.0).to(tl.float32)
            tl.store(target + dims, ((low * c - high * s) / key_scale).to(cache.dtype.element_ty), mask=mask)
            tl.store(
                target + HEAD_DIM // 2 + dims, ((high * c + low * s) / key_scale).to(cache.dtype.element_ty), mask=mask
            )
            low = tl.load(v + source + dims, mask=mask, other=0.0).to(tl.float32)
            high = tl.load(v + source + HEAD_DIM // 2 + dims, mask=mask, other=0.0).to(tl.float32)
            tl.store(target + value_offset + dims, (low / value_scale).to(cache.dtype.element_ty), mask=mask)
            tl.store(
                target + value_offset + HEAD_DIM // 2 + dims, (high / value_scale).to(cache.dtype.element_ty), mask=mask
            )


def rotate_and_store(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor,
    slots: torch.Tensor, cache: Cache,
) -> None:  # fmt: skip
    """Rotate ``q`` (tokens × heads × dim) in place; rotate ``k`` and write it and ``v`` into the cache.

    ``cos`` and ``sin`` are positions × dim/2 (the two halves of a head rotate together, as in GPT-NeoX).
    """
    tokens, heads, head_dim = q.shape
    rope_kernel[(tokens, heads + cache.kv_heads)](
        q, k, v, cos, sin, positions, slots, cache.flat, cache.tensor.stride(0), cache.value_offset, cache.key_scale,
        cache.value_scale, HEADS=heads, KV_HEADS=cache.kv_heads, HEAD_DIM=head_dim,
        HALF=triton.next_power_of_2(head_dim // 2), BLOCK_SIZE=cache.block_size,
    )  # fmt: skip
