"""8-bit checkpoints: which are read (``parse_scheme``, without torch), and how their weights are widened.

* ``fp8`` (Hugging Face): float8_e4m3fn with one scale per 128 × 128 block (``weight_scale_inv``) or per tensor;
* ``compressed-tensors``: int8 or float8_e4m3fn, symmetric, one scale per tensor, output, group or block
  (``weight_scale``).

Only the weights' numbers matter here: activations keep their own type, which is more exact than what the checkpoint
was made for. Modules left alone by the quantiser are told by their tensors' type.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roundhouse_torch.errors import UnsupportedModel

if TYPE_CHECKING:
    import torch

METHODS = ("fp8", "compressed-tensors")
SCALES = ("weight_scale_inv", "weight_scale")


@dataclass(frozen=True, slots=True)
class Scheme:
    """``block``: rows and columns that share a scale; None: told by the shape of the scales."""

    method: str
    block: tuple[int, int] | None = None


def parse_scheme(config: Mapping[str, Any]) -> Scheme:
    """``quantization_config``. Raises `UnsupportedModel`, naming what is supported."""
    method = str(config.get("quant_method", "unknown"))
    if method not in METHODS:
        raise UnsupportedModel(
            f"quantised weights ({method}) are not supported; supported: {', '.join(METHODS)} with 8 bits, and "
            "float32, bfloat16, float16"
        )
    block = config.get("weight_block_size")
    if method == "compressed-tensors":
        for name, group in (config.get("config_groups") or {}).items():
            _check_group(name, group.get("weights") or {}, str(config.get("format", "")))
            block = block or (group.get("weights") or {}).get("block_structure")
    return Scheme(method, (int(block[0]), int(block[1])) if block else None)


def _check_group(name: str, weights: Mapping[str, Any], form: str) -> None:
    bits, symmetric = weights.get("num_bits", 8), weights.get("symmetric", True)
    if bits != 8 or not symmetric or form == "pack-quantized":
        raise UnsupportedModel(
            f"compressed-tensors group {name} has {bits}-bit weights (symmetric={symmetric}, format "
            f"{form or 'unknown'}); supported: 8 bits, symmetric, not packed (int-quantized, float-quantized, "
            "naive-quantized)"
        )


def widened(weight: "torch.Tensor", scale: "torch.Tensor", scheme: Scheme | None) -> "torch.Tensor":
    """float32 weights. ``scale`` holds one number, or one per output, or one per group or block of them."""
    rows, columns = weight.shape
    scale = scale.float()
    if scale.numel() == 1:
        return weight.float() * scale.reshape(())
    if scale.dim() == 1:
        scale = scale[:, None]
    high, wide = (scheme.block if scheme is not None else None) or (
        -(-rows // scale.shape[0]),
        -(-columns // scale.shape[1]),
    )
    if scale.shape[0] != rows:
        scale = scale.repeat_interleave(high, 0)[:rows]
    if scale.shape[1] not in (1, columns):
        scale = scale.repeat_interleave(wide, 1)[:, :columns]
    return weight.float() * scale
