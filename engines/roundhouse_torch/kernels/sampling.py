"""Top-k and top-p sampling of one row per program, without sorting the vocabulary.

Floats keep their order when their bits are mapped to unsigned integers, so the k-th largest logit, and the smallest
logit of the nucleus, are found exactly by setting the bits of a threshold from the highest down: 32 passes over a row
that stays in cache. The draw is Gumbel's: ``argmax(logit − log(−log u))`` over what is left, ``u`` from Philox on the
row's own seed, so that a request draws the same tokens whatever it is batched with.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _ordered(x):
    """fp32 → uint32 of the same order."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def sample_kernel(
    out, logits, temperatures, top_ks, top_ps, seeds, vocabulary, BLOCK: tl.constexpr, CHUNKS: tl.constexpr
):
    """Greedy when the temperature is 0; ``top_ks`` 0 and ``top_ps`` 1 switch the filters off."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * vocabulary
    temperature = tl.load(temperatures + row)
    greedy = temperature <= 0.0
    scale = 1.0 / tl.where(greedy, 1.0, temperature)
    lanes = tl.arange(0, BLOCK)

    highest = tl.full([], float("-inf"), tl.float32)
    for chunk in range(CHUNKS):
        columns = chunk * BLOCK + lanes
        x = tl.load(base + columns, mask=columns < vocabulary, other=float("-inf")).to(tl.float32) * scale
        highest = tl.maximum(highest, tl.max(x, axis=0))

    k = tl.load(top_ks + row)
    least = tl.zeros([], tl.uint32)
    if (k > 0) & (k < vocabulary) & (greedy == 0):
        for bit in range(32):
            trial = least | (tl.full([], 0x80000000, tl.uint32) >> bit)
            count = tl.zeros([], tl.int32)
            for chunk in range(CHUNKS):
                columns = chunk * BLOCK + lanes
                x = tl.load(base + columns, mask=columns < vocabulary, other=float("-inf")).to(tl.float32) * scale
                count += tl.sum(((_ordered(x) >= trial) & (columns < vocabulary)).to(tl.int32), axis=0)
            least = tl.where(count >= k, trial, least)

    p = tl.load(top_ps + row)
    if (p < 1.0) & (greedy == 0):
        mass = tl.zeros([], tl.float32)
        for chunk in range(CHUNKS):
            columns = chunk * BLOCK + lanes
            x = tl.load(base + columns, mask=columns < vocabulary, other=float("-inf")).to(tl.float32) * scale
            mass += tl.sum(tl.where(_ordered(x) >= least, tl.exp(x - highest), 0.0), axis=0)
        nucleus = tl.zeros([], tl.uint32)
        for bit in range(32):
            trial = nucleus | (tl.full([], 0x80000000, tl.uint32) >> bit)
            inside = tl.zeros([], tl.float32)
            for chunk in range(CHUNKS):
                columns = chunk * BLOCK + lanes
                x = tl.load(base + columns, mask=columns < vocabulary, other=float("-inf")).to(tl.float32) * scale
                keep = (_ordered(x) >= trial) & (_ordered(x) >= least)
                inside += tl.sum(tl.where(keep, tl.exp(x - highest), 0.0), axis=0)
            nucleus = tl.where(inside >= p * mass, trial, nucleus)
        least = tl.maximum(least, nucleus)

    seed = tl.load(seeds + row)
    best = tl.full([], float("-inf"), tl.float32)
    token = tl.zeros([], tl.int32)
    for chunk in range(CHUNKS):
        columns = chunk * BLOCK + lanes
        x = tl.load(base + columns, mask=columns < vocabulary, other=float("-inf")).to(tl.float32) * scale
        u = tl.rand(seed, columns)
        noise = -tl.log(-tl.log(tl.maximum(u, 1.0e-10)))
        score = tl.where(greedy, x, x + noise)
        score = tl.where((_ordered(x) >= least) & (columns < vocabulary), score, float("-inf"))
        top = tl.max(score, axis=0)
        where = tl.argmax(score, axis=0).to(tl.int32) + chunk * BLOCK
        token = tl.where(top > best, where, token)
        best = tl.maximum(best, top)
    tl.store(out + row, token)


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, seeds: torch.Tensor
) -> torch.Tensor:
    """One token id (int32) per row of ``logits`` (rows × vocabulary, fp32)."""
    rows, vocabulary = logits.shape
    out = torch.empty(rows, device=logits.device, dtype=torch.int32)
    block = min(8192, triton.next_power_of_2(vocabulary))
    chunks = triton.cdiv(vocabulary, block)
    sample_kernel[(rows,)](out, logits, temperatures, top_ks, top_ps, seeds, vocabulary, BLOCK=block, CHUNKS=chunks)
    return out
