"""Each kernel against its PyTorch twin, in the interpreter, in fp32 and fp16, over the ugly shapes too."""

import math
from dataclasses import dataclass

import pytest
import torch
from roundhouse_torch.engine.sampler import key
from roundhouse_torch.kernels import reference
from roundhouse_torch.kernels.activation import silu_mul
from roundhouse_torch.kernels.attention import Cache, Scratch, attend, attend_decode
from roundhouse_torch.kernels.gemm import quantised_linear
from roundhouse_torch.kernels.norm import rms_norm
from roundhouse_torch.kernels.plain import TorchOperations
from roundhouse_torch.kernels.rope import rotate_and_store
from roundhouse_torch.kernels.sampling import sample
from roundhouse_torch.models.layers.rope import Rotation, rotate

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}
PLAIN = TorchOperations()
DTYPES = [torch.float32, torch.float16]


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    dim: int
    block: int


SHAPES = [Shape(9, 3, 64, 16), Shape(4, 4, 32, 1), Shape(8, 1, 48, 16), Shape(2, 1, 128, 64)]


def paged(shape: Shape, lengths: list[int], dtype: torch.dtype, layers: int = 2) -> tuple[Cache, torch.Tensor]:
    width = max(-(-n // shape.block) for n in lengths)
    blocks = width * len(lengths) + 3
    torch.manual_seed(1)
    tensor = torch.randn(blocks, layers, 2, shape.block, shape.kv_heads, shape.dim).to(dtype)
    tables = torch.randperm(blocks)[: width * len(lengths)].view(len(lengths), width).to(torch.int32)
    return Cache(tensor, layer=1), tables


def batch(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [0, 7])
def test_mixed_attention_equals_its_reference(shape: Shape, dtype: torch.dtype, window: int) -> None:
    counts, lengths = [1, 5, 1, 13], [1, 5, 37, 20]
    cache, tables = paged(shape, lengths, dtype)
    q = torch.randn(sum(counts), shape.heads, shape.dim).to(dtype)
    args = (q, cache, tables, batch(counts), torch.tensor(lengths, dtype=torch.int32))
    got, want = attend(*args, window=window), reference.attend(*args, window=window)
    assert (got - want).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [0, 7])
def test_split_decode_equals_its_reference(shape: Shape, dtype: torch.dtype, window: int) -> None:
    lengths = [1, 16, 17, 70]
    cache, tables = paged(shape, lengths, dtype)
    q = torch.randn(len(lengths), shape.heads, shape.dim).to(dtype)
    sizes = torch.tensor(lengths, dtype=torch.int32)
    scratch = Scratch.allocate(len(lengths), shape.heads, shape.dim, 4, q.device)
    got = attend_decode(q, cache, tables, sizes, scratch, window=window)
    want = reference.attend(q, cache, tables, batch([1] * len(lengths)), sizes, window=window)
    assert (got - want).abs().max() < TOLERANCE[dtype]


def test_attention_reads_an_fp8_cache_with_its_scales() -> None:
    shape = Shape(4, 2, 32, 16)
    cache, tables = paged(shape, [20], torch.float32)
    cache = Cache(cache.tensor.to(torch.float8_e4m3fn), layer=1, key_scale=0.5, value_scale=2.0)
    q = torch.randn(4, shape.heads, shape.dim)
    args = (q, cache, tables, batch([4]), torch.tensor([20], dtype=torch.int32))
    assert (attend(*args) - reference.attend(*args)).abs().max() < TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 48, 576, 1000])
def test_norm_adds_the_residual_and_equals_its_reference(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(2)
    x, residual, weight = torch.randn(3, width).to(dtype), torch.randn(3, width).to(dtype), torch.randn(width).to(dtype)
    ours, theirs = residual.clone(), residual.clone()
    wide, scale = theirs.float(), weight.float()
    got, want = rms_norm(x, weight, 1e-5, ours), PLAIN.add_norm(x.float(), wide, scale, 1e-5)
    assert (got - want).abs().max() < 4 * TOLERANCE[dtype]
    assert torch.equal(ours, wide.to(dtype))
    alone = rms_norm(x, weight, 1e-5) - PLAIN.norm(x.float(), scale, 1e-5)
    assert alone.abs().max() < 4 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_rope_rotates_and_fills_the_right_slots_only(shape: Shape, dtype: torch.dtype) -> None:
    cache, _ = paged(shape, [40], dtype)
    before = cache.tensor.clone()
    tokens = 3
    q = torch.randn(tokens, shape.heads, shape.dim).to(dtype)
    k, v = (torch.randn(tokens, shape.kv_heads, shape.dim).to(dtype) for _ in range(2))
    angles = torch.arange(50)[:, None] * torch.rand(shape.dim // 2)[None, :]
    cos, sin = angles.cos(), angles.sin()
    positions, slots = torch.tensor([4, 0, 49]), torch.tensor([2 * shape.block, -1, 0])
    rotation = Rotation.of(cos, sin, positions)
    want_q, want_k = (rotate(x.float(), rotation) for x in (q, k))
    rotate_and_store(q, k, v, cos, sin, positions, slots, cache)
    assert (q - want_q).abs().max() < TOLERANCE[dtype]
    for token, block in ((0, 2), (2, 0)):
        assert (cache.tensor[block, 1, 0, 0] - want_k[token]).abs().max() < TOLERANCE[dtype]
        assert torch.equal(cache.tensor[block, 1, 1, 0], v[token])
        cache.tensor[block, 1, :, 0] = before[block, 1, :, 0]
    assert torch.equal(cache.tensor, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 100, 1536])
def test_silu_equals_its_reference(dtype: torch.dtype, width: int) -> None:
    x = torch.randn(2, 2 * width).to(dtype)
    assert (silu_mul(x) - PLAIN.silu_mul(x.float())).abs().max() < TOLERANCE[dtype]


def draw(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, seed: int, step: int = 0) -> list[int]:
    """As the sampler does on CUDA: seeds from ``seed`` on, behind ``step`` tokens."""
    rows = len(logits)
    full = lambda value, kind: torch.full((rows,), value, dtype=kind)  # noqa: E731
    seeds = torch.tensor([key(seed + index, step) - 2**63 for index in range(rows)])
    found: list[int] = sample(
        logits, full(temperature, torch.float32), full(top_k, torch.int32), full(top_p, torch.float32), seeds
    ).tolist()
    return found


def test_greedy_takes_the_largest_logit_in_any_chunk() -> None:
    torch.manual_seed(3)
    logits = torch.randn(4, 8192 + 77)
    assert draw(logits, 0.0, 0, 1.0, 0) == logits.argmax(-1).tolist()


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (1, 1.0), (5, 1.0), (0, 0.5), (7, 0.6), (0, 1e-6), (99, 0.999)])
def test_only_allowed_tokens_are_drawn(top_k: int, top_p: float) -> None:
    torch.manual_seed(4)
    row = torch.randn(24) * 0.7
    allowed = reference.allowed(row, 0.9, top_k, top_p).nonzero().flatten().tolist()
    drawn = draw(row.repeat(16, 1), 0.9, top_k, top_p, 7)
    assert set(drawn) <= set(allowed)
    if len(allowed) == 1:
        assert set(drawn) == set(allowed)


def test_ties_at_the_threshold_all_stay_in() -> None:
    row = torch.tensor([1.0, 3.0, 3.0, -2.0])
    assert set(draw(row.repeat(24, 1), 1.0, 1, 1.0, 50)) == {1, 2}


def test_draws_follow_the_distribution() -> None:
    row = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    drawn = torch.tensor(draw(row.repeat(96, 1), 1.0, 0, 1.0, 100) + draw(row.repeat(96, 1), 1.0, 0, 1.0, 900, step=3))
    share = drawn.bincount(minlength=4) / len(drawn)
    spread = (row.exp() * (1 - row.exp()) / len(drawn)).sqrt()
    assert bool(((share - row.exp()).abs() < 4 * spread).all())


def test_a_seed_and_a_position_fix_the_draw_whatever_the_batch() -> None:
    torch.manual_seed(5)
    row = torch.randn(1, 300)
    alone = draw(row, 1.0, 0, 1.0, 42, step=9)
    batched = draw(row.repeat(5, 1), 1.0, 0, 1.0, 40, step=9)
    assert batched[2] == alone[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 64, 64), (3, 70, 130), (17, 33, 48)])
def test_8_bit_gemm_equals_its_reference(dtype: torch.dtype, kind: torch.dtype, m: int, n: int, k: int) -> None:
    torch.manual_seed(6)
    x = torch.randn(m, k).to(dtype)
    weight = (torch.randn(n, k) * 20).to(kind)
    scales = torch.rand(n) / 200
    got, want = quantised_linear(x, weight, scales), PLAIN.linear8(x.float(), weight, scales)
    assert (got - want).abs().max() < 10 * TOLERANCE[dtype] * math.sqrt(k) / 8
