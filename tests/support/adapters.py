"""Random LoRA adapters in PEFT's layout, and what transformers computes with them merged into the weights."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

MODULES = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def write_adapter(folder: Path, model: Path, *, seed: int, rank: int = 4, **config: Any) -> Path:
    """Changes `MODULES` of every layer by as much as the weights themselves are."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(MODULES):
            key = f"base_model.model.{module}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(rank, weight.shape[1], generator=generator) * 0.3
            tensors[f"{key}.lora_B.weight"] = torch.randn(weight.shape[0], rank, generator=generator) * 0.3
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def merged(model: Path, adapter: Path | None) -> Any:
    """PEFT's own formula: W + B·A·alpha/r, or alpha/√r."""
    oracle = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    if adapter is None:
        return oracle
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    weights = dict(oracle.named_parameters())
    with torch.no_grad():
        for key in tensors:
            if ".lora_A." in key:
                name = key.removeprefix("base_model.model.").replace(".lora_A", "")
                weights[name] += tensors[key.replace("lora_A", "lora_B")] @ tensors[key] * scale
    return oracle


def greedy(oracle: Any, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(oracle(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]
