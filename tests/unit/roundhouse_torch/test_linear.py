"""Every way to multiply gives the product, for any batch."""

import pytest
import torch
from roundhouse_torch.models.layers.linear import Linear, PackedLinear


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33, 300])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_weights_multiply_as_plain_ones(rows: int, biased: bool) -> None:
    torch.manual_seed(rows)
    stored, x = torch.randn(2100, 70), torch.randn(rows, 70)
    bias = torch.randn(2100) if biased else None
    expected = torch.nn.functional.linear(x, stored, bias)
    torch.testing.assert_close(PackedLinear(stored, bias)(x), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(Linear(stored.t().contiguous(), bias)(x), expected, atol=1e-4, rtol=0)


def test_only_wide_float32_on_cpu_is_packed() -> None:
    cpu = torch.device("cpu")
    assert PackedLinear.pays(cpu, torch.float32, 4096)
    assert not PackedLinear.pays(cpu, torch.float32, 576)
    assert not PackedLinear.pays(cpu, torch.bfloat16, 4096)
    assert not PackedLinear.pays(torch.device("cuda"), torch.float32, 4096)
