"""8-bit checkpoints compute what their widened weights compute; what is not read says what is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from roundhouse_torch.engine.runner import ModelRunner
from roundhouse_torch.errors import BrokenModel, UnsupportedModel
from roundhouse_torch.kernels.plain import TorchOperations
from roundhouse_torch.kvcache.storage import KVStorage
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.models.checkpoint import Checkpoint
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.quantised import parse_scheme, widened
from roundhouse_torch.models.registry import load_factory
from roundhouse_torch.models.weights import Weights
from roundhouse_torch.scheduler.sequence import Sequence
from roundhouse_torch.scheduler.step import Work
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import write_model

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]
FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [32, 32]}
FP8_TENSOR = {"quant_method": "fp8"}


def compressed(kind: str, form: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": kind, "symmetric": True, **more}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": weights}}}


def per_output(weight: torch.Tensor) -> Tensors:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale.to(torch.bfloat16)}


def per_group(weight: torch.Tensor) -> Tensors:
    grouped = weight.view(weight.shape[0], -1, 16)
    scale = grouped.abs().amax(2) / 127
    return {"weight": (grouped / scale[..., None]).round().to(torch.int8).view_as(weight), "weight_scale": scale}


def per_tensor(weight: torch.Tensor) -> Tensors:
    scale = weight.abs().amax() / 448
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale.reshape(1)}


def per_block(weight: torch.Tensor) -> Tensors:
    """32 × 32, the last ones cut."""
    rows, columns = -(-weight.shape[0] // 32), -(-weight.shape[1] // 32)
    padded = torch.zeros(rows * 32, columns * 32)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    scale = padded.view(rows, 32, columns, 32).abs().amax((1, 3)) / 448
    whole = scale.repeat_interleave(32, 0).repeat_interleave(32, 1)[: weight.shape[0], : weight.shape[1]]
    return {"weight": (weight / whole).to(torch.float8_e4m3fn), "weight_scale_inv": scale}


CASES: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Tensors]]] = {
    "fp8 in blocks": (FP8_BLOCKS, per_block),
    "fp8 per tensor": (FP8_TENSOR, per_tensor),
    "int8 per output": (compressed("int", "int-quantized", strategy="channel"), per_output),
    "int8 per group": (compressed("int", "int-quantized", strategy="group", group_size=16), per_group),
    "float8 per tensor": (compressed("float", "float-quantized", strategy="tensor"), per_tensor),
}


def quantise(folder: Path, config: dict[str, Any], quantised: Callable[[torch.Tensor], Tensors]) -> tuple[Path, Path]:
    """A quantised copy of a tiny model, and one with the same weights in float32."""
    tensors = load_file(folder / "model.safetensors")
    eight, wide = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            parts = quantised(tensor)
            eight |= {f"{name.removesuffix('weight')}{part}": value.contiguous() for part, value in parts.items()}
            scale = parts.get("weight_scale", parts.get("weight_scale_inv"))
            assert scale is not None
            wide[name] = widened(parts["weight"], scale, parse_scheme(config))
            assert (wide[name] - tensor).abs().max() < 0.05, "the scales are not those of the weights"
    folders = folder / "eight", folder / "wide"
    settings = json.loads((folder / "config.json").read_text())
    for target, values, more in zip(folders, (eight, wide), ({"quantization_config": config}, {}), strict=True):
        target.mkdir()
        save_file(values, target / "model.safetensors")
        (target / "config.json").write_text(json.dumps(settings | more))
    return folders


def logits(folder: Path, operations: TorchOperations) -> torch.Tensor:
    config = ModelConfig.read(folder)
    weights = Weights(Checkpoint(folder), CPU, torch.float32, config.scheme, operations)
    model = load_factory(config.architecture)(config, weights, 64)
    storage = KVStorage(4, 16, config.num_layers, config.num_kv_heads, config.head_dim, device=CPU, dtype=torch.float32)
    sequence = Sequence(0, list(range(3, 33)), Sampling(), max_length=64, root=b"")
    sequence.blocks = [2, 0]
    return ModelRunner(model, operations.attention(storage, config), CPU).logits([Work(sequence, 0, 30, True)])


class KeepsEightBits(TorchOperations):
    keeps_8_bits = True


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("operations", [TorchOperations(), KeepsEightBits()], ids=["widened", "kept"])
def test_quantised_weights_compute_what_their_widened_ones_do(
    tmp_path: Path, case: str, operations: TorchOperations
) -> None:
    eight, wide = quantise(write_model(tmp_path / "m", {"intermediate_size": 80}), *CASES[case])
    torch.testing.assert_close(logits(eight, operations), logits(wide, TorchOperations()), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "gptq"}, r"quantised weights \(gptq\) are not supported; supported: fp8, compressed-tensors"),
        (compressed("int", "pack-quantized"), "format pack-quantized"),
        (compressed("int", "int-quantized", num_bits=4), "4-bit weights"),
        (compressed("int", "int-quantized", symmetric=False), "symmetric=False"),
    ],
)
def test_other_schemes_say_what_is_supported(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        parse_scheme(config)


def test_missing_scales_are_named(tmp_path: Path) -> None:
    eight, _ = quantise(write_model(tmp_path / "m"), *CASES["fp8 per tensor"])
    tensors = load_file(eight / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight_scale"]
    save_file(tensors, eight / "model.safetensors")
    with pytest.raises(BrokenModel, match=r"model\.layers\.1\.mlp\.down_proj\.weight has 8 bits but no weight_scale"):
        logits(eight, TorchOperations())
