"""``silu(gate) · up`` of a gated MLP, read from one tensor that holds both side by side."""

import torch
import triton
import triton.language as tl


@triton.jit
def silu_kernel(out, x, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(x + row * 2 * width + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=mask)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """``x``: rows × (gate ‖ up), each ``width`` wide. Returns rows × width."""
    rows, double = x.shape
    width = double // 2
    out = torch.empty(rows, width, device=x.device, dtype=x.dtype)
    block = min(1024, triton.next_power_of_2(width))
    silu_kernel[(rows, triton.cdiv(width, block))](out, x, width, BLOCK=block)
    return out
