"""``x · (weight · scale)ᵀ`` with 8-bit weights and one scale per output channel; weights are widened in registers.

int8 runs everywhere; fp8 (e4m3) needs sm_89 or newer, older devices dequantise when loading.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm_kernel(out, x, weight, scales, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    row_ok = rows < m
    column_ok = columns < n
    acc = tl.zeros([BM, BN], tl.float32)
    for at in range(0, k, BK):
        depth = at + tl.arange(0, BK)
        depth_ok = depth < k
        a = tl.load(
            x + rows.to(tl.int64)[:, None] * k + depth[None, :], mask=row_ok[:, None] & depth_ok[None, :], other=0.0
        )
        b = tl.load(
            weight + columns.to(tl.int64)[None, :] * k + depth[:, None],
            mask=column_ok[None, :] & depth_ok[:, None],
            other=0.0,
        )
        acc += tl.dot(a, b.to(a.dtype), out_dtype=tl.float32)
    acc *= tl.load(scales + columns, mask=column_ok, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + rows.to(tl.int64)[:, None] * n + columns[None, :],
        acc.to(out.dtype.element_ty),
        mask=row_ok[:, None] & column_ok[None, :],
    )


def quantised_linear(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """``x``: rows × k. ``weight``: n × k in int8 or float8_e4m3fn. ``scales``: n. Returns rows × n in ``x``'s type."""
    m, k = x.shape
    n = weight.shape[0]
    out = torch.empty(m, n, device=x.device, dtype=x.dtype)
    bm = 64 if m > 16 else 16
    gemm_kernel[(triton.cdiv(m, bm), triton.cdiv(n, 64))](out, x, weight, scales, m, n, k, BM=bm, BN=64, BK=64)
    return out
