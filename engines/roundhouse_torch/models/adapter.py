"""LoRA adapters as PEFT writes them: ``adapter_config.json`` and ``adapter_model.safetensors``."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from roundhouse_torch.models.layers.lora import LoraSites

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "alpha_pattern": ({}, None),
}
_PREFIX = "base_model.model."

Pairs = dict[str, tuple[torch.Tensor, torch.Tensor]]


class AdapterError(ValueError):
    """The client's fault: what is wrong with the adapter, or why it cannot be done now."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """``identity`` is its name and the digest of its files."""

    identity: str
    weights: Pairs


def read_adapter(name: str, folder: Path, sites: LoraSites, max_rank: int) -> Adapter:
    """Raises `AdapterError`, naming what does not fit and what would."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        data = (folder / "adapter_model.safetensors").read_bytes()
        tensors = load(data)
    except Exception as error:  # safetensors raises nothing narrower for broken files
        raise AdapterError(
            f"{folder} has no readable adapter_config.json and adapter_model.safetensors: {error}"
        ) from error
    weights = _pairs(config, tensors, sites, max_rank)
    digest = sha256(data + json.dumps(config, sort_keys=True).encode()).hexdigest()
    return Adapter(f"{name}:{digest}", weights)


def _pairs(config: Mapping[str, Any], tensors: dict[str, torch.Tensor], sites: LoraSites, max_rank: int) -> Pairs:
    for field, neutral in _UNSUPPORTED.items():
        if config.get(field) not in neutral:
            raise AdapterError(f"{field}={config[field]!r} in adapter_config.json is not supported")
    pairs: Pairs = {}
    for key in sorted(tensors):
        module, kind, _ = key.removeprefix(_PREFIX).rpartition(".lora_A.")
        if not kind:
            if ".lora_B." not in key:
                raise AdapterError(f"tensor {key!r} is no lora_A or lora_B weight; only those are supported")
            continue
        a, b = tensors[key], tensors.get(key.replace(".lora_A.", ".lora_B."))
        site, start, stop = sites.sites.get(module, (None, 0, 0))
        if site is None:
            raise AdapterError(f"this model has no adaptable projection {module!r}")
        rank, inputs = a.shape
        if b is None or inputs != site.inputs or tuple(b.shape) != (stop - start, rank):
            raise AdapterError(f"lora_A and lora_B of {module!r} do not fit this model")
        if rank > max_rank:
            raise AdapterError(f"rank {rank} is above --max-lora-rank {max_rank}")
        alpha = float(config.get("lora_alpha") or rank)
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        pairs[module] = (a.t().contiguous(), b.t().float().mul(scale).contiguous())
    if not pairs:
        raise AdapterError("the adapter has no weights")
    return pairs
