"""What attention and sampling must compute, in a few lines of PyTorch; for the other kernels `plain` says it."""

import torch

from roundhouse_torch.kernels.attention import Cache


def attend(
    q: torch.Tensor, cache: Cache, tables: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, *, window: int = 0
) -> torch.Tensor:
    out = torch.empty_like(q)
    group = q.shape[1] // cache.kv_heads
    for i, length in enumerate(lengths.tolist()):
        begin, end = int(starts[i]), int(starts[i + 1])
        used = tables[i, : -(-length // cache.block_size)].long()
        keys, values = (
            (cache.tensor[used, cache.layer, part].flatten(0, 1)[:length].float() * scale).repeat_interleave(
                group, dim=1
            )
            for part, scale in ((0, cache.key_scale), (1, cache.value_scale))
        )
        places = torch.arange(length - (end - begin), length)[:, None]
        at = torch.arange(length)[None, :]
        seen = at <= places
        if window:
            seen &= at > places - window
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), keys) * q.shape[2] ** -0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out


def allowed(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Which tokens of one row may be drawn."""
    x = logits.float() / temperature
    keep = torch.ones_like(x, dtype=torch.bool)
    if 0 < top_k < x.numel():
        keep &= x >= x.topk(top_k).values[-1]
    if top_p < 1.0:
        order = x.masked_fill(~keep, float("-inf")).softmax(-1).sort(descending=True)
        inside = order.values.cumsum(-1) - order.values < top_p
        keep &= x >= x[order.indices[inside]].min()
    return keep
