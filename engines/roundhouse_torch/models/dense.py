"""The decoder that Llama, Mistral and Qwen share: RMSNorm, grouped-query attention with rotary embedding, gated SiLU
feed-forward. What a family does otherwise is an option of `Family`.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding

from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.layers.attention import SelfAttention
from roundhouse_torch.models.layers.linear import Projection
from roundhouse_torch.models.layers.mlp import GatedMLP
from roundhouse_torch.models.layers.norm import RMSNorm
from roundhouse_torch.models.layers.operations import AttentionPass
from roundhouse_torch.models.layers.rope import Rope
from roundhouse_torch.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Family:
    """``head_norms``: queries and keys are normalised per head."""

    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: RMSNorm
    attention: SelfAttention
    mlp_norm: RMSNorm
    mlp: GatedMLP


@dataclass(frozen=True, slots=True)
class DenseDecoder:
    """See `Decoder`."""

    embeddings: torch.Tensor
    layers: list[Layer]
    norm: RMSNorm
    head: Projection
    rope: Rope

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: AttentionPass) -> torch.Tensor:
        rotation = self.rope.at(positions)
        residual = embedding(ids, self.embeddings)
        x = self.layers[0].attention_norm(residual)
        for index, layer in enumerate(self.layers):
            if index:
                x = layer.attention_norm.after(x, residual)
            x = layer.mlp_norm.after(layer.attention(x, rotation, attend), residual)
            x = layer.mlp(x)
        return residual.add_(x)

    def features(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(hidden)).float()


def build_dense(config: ModelConfig, weights: Weights, max_length: int, family: Family) -> DenseDecoder:
    """See `DecoderFactory`."""
    embeddings = weights.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    head = "model.embed_tokens" if config.tied_embeddings else "lm_head"
    return DenseDecoder(
        embeddings,
        [_layer(config, weights, index, family) for index in range(config.num_layers)],
        weights.norm("model.norm", config.hidden_size, config.rms_eps),
        weights.head(head, config.vocab_size, config.hidden_size),
        Rope(config.rope, config.head_dim, max_length, weights.device, weights.dtype),
    )


def _layer(config: ModelConfig, weights: Weights, index: int, family: Family) -> Layer:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    gate_up = weights.linear(f"{prefix}.mlp", (("gate_proj", inner), ("up_proj", inner)), hidden, bias=family.mlp_bias)
    down = weights.linear(f"{prefix}.mlp", (("down_proj", hidden),), inner, bias=family.mlp_bias, inward=True)
    return Layer(
        weights.norm(f"{prefix}.input_layernorm", hidden, config.rms_eps),
        _attention(config, weights, index, family),
        weights.norm(f"{prefix}.post_attention_layernorm", hidden, config.rms_eps),
        GatedMLP(gate_up, down, weights.operations),
    )


def _attention(config: ModelConfig, weights: Weights, index: int, family: Family) -> SelfAttention:
    prefix = f"model.layers.{index}.self_attn"
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = (("q_proj", query), ("k_proj", key), ("v_proj", key))
    norms = [
        weights.norm(f"{prefix}.{name}", config.head_dim, config.rms_eps) if family.head_norms else None
        for name in ("q_norm", "k_norm")
    ]
    return SelfAttention(
        index,
        weights.linear(prefix, parts, config.hidden_size, bias=family.qkv_bias),
        weights.linear(prefix, (("o_proj", config.hidden_size),), query, bias=family.out_bias, inward=True),
        heads=config.num_heads // weights.shard.size,
        kv_heads=config.num_kv_heads // weights.shard.size,
        head_dim=config.head_dim,
        window=config.windows[index],
        q_norm=norms[0],
        k_norm=norms[1],
    )
