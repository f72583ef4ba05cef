"""Random models of a few hundred KB, made at test time: any mistake in keys, mask or positions shows in their logits.

Weights have a standard deviation of 0.2: with the usual 0.02 a tied embedding echoes its input and hides mistakes.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def write_model(folder: Path, config: dict[str, Any] | None = None, *, seed: int = 0, shards: int = 1) -> Path:
    """A folder like a downloaded one: config, safetensors (with an index when ``shards`` > 1), tokenizer, template."""
    config = {**LLAMA, **(config or {})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    _write_weights(folder, _weights(config, np.random.default_rng(seed)), shards)
    make_tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def make_tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level BPE, complete in its byte alphabet, trained on this file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    return tokenizer


def _weights(config: dict[str, Any], random: np.random.Generator) -> dict[str, np.ndarray]:
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, 0.2, (rows, columns)).astype(np.float32)

    def vector(size: int, center: float) -> np.ndarray:
        return random.normal(center, 0.2, size).astype(np.float32)

    biased = _biased(config)
    tensors = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden),
        "model.norm.weight": vector(hidden, 1),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}"
        shapes = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (key, hidden),
            "self_attn.v_proj": (key, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for name, shape in shapes.items():
            tensors[f"{prefix}.{name}.weight"] = matrix(*shape)
            if name in biased:
                tensors[f"{prefix}.{name}.bias"] = vector(shape[0], 0)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = vector(hidden, 1)
        if config["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                tensors[f"{prefix}.self_attn.{name}.weight"] = vector(dim, 1)
    return tensors


def _biased(config: dict[str, Any]) -> set[str]:
    """Projections that have a bias."""
    inputs = {f"self_attn.{name}_proj" for name in "qkv"}
    if config["model_type"] == "qwen2":
        return inputs
    attention = inputs | {"self_attn.o_proj"} if config.get("attention_bias") else set()
    mlp = {f"mlp.{name}_proj" for name in ("gate", "up", "down")} if config.get("mlp_bias") else set()
    return attention | mlp


def _write_weights(folder: Path, tensors: dict[str, np.ndarray], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
