"""Llama and what copies it: RMSNorm, grouped-query attention with rotary embedding, gated SiLU feed-forward."""

import torch
from torch.nn.functional import embedding, linear

from roundhouse_torch.attention.backend import AttentionPass
from roundhouse_torch.layers.attention import SelfAttention
from roundhouse_torch.layers.mlp import GatedMLP
from roundhouse_torch.layers.norm import RMSNorm
from roundhouse_torch.layers.rope import Rope, Rotation
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.weights import Weights


class LlamaLayer:
    __slots__ = ("_attention", "_attention_norm", "_mlp", "_mlp_norm")

    def __init__(self, attention_norm: RMSNorm, attention: SelfAttention, mlp_norm: RMSNorm, mlp: GatedMLP) -> None:
        self._attention_norm = attention_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    def __call__(self, x: torch.Tensor, rotation: Rotation, attend: AttentionPass) -> torch.Tensor:
        x = x + self._attention(self._attention_norm(x), rotation, attend)
        return x + self._mlp(self._mlp_norm(x))


class Llama:
    """See `Decoder`."""

    def __init__(
        self, embeddings: torch.Tensor, layers: list[LlamaLayer], norm: RMSNorm, head: torch.Tensor, rope: Rope
    ) -> None:
        self._embeddings = embeddings
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rope = rope

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: AttentionPass) -> torch.Tensor:
        rotation = self._rope.at(positions)
        x = embedding(ids, self._embeddings)
        for layer in self._layers:
            x = layer(x, rotation, attend)
        return x

    def features(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._norm(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(self._norm(hidden), self._head).float()


def build(config: ModelConfig, weights: Weights, max_length: int) -> Llama:
    """See `DecoderFactory`."""
    embeddings = weights.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    head = (
        embeddings
        if config.tied_embeddings
        else weights.matrix("lm_head.weight", config.vocab_size, config.hidden_size)
    )
    return Llama(
        embeddings,
        [_layer(config, weights, index) for index in range(config.num_layers)],
        RMSNorm(weights.vector("model.norm.weight", config.hidden_size), config.rms_eps),
        head,
        Rope(config.rope, config.head_dim, max_length, weights.device, weights.dtype),
    )


def _layer(config: ModelConfig, weights: Weights, index: int) -> LlamaLayer:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = SelfAttention(
        index,
        weights.linear(
            f"{prefix}.self_attn",
            (("q_proj", query), ("k_proj", key), ("v_proj", key)),
            hidden,
            bias=config.attention_bias,
        ),
        weights.linear(f"{prefix}.self_attn", (("o_proj", hidden),), query, bias=config.attention_bias),
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
    )
    mlp = GatedMLP(
        weights.linear(f"{prefix}.mlp", (("gate_proj", inner), ("up_proj", inner)), hidden, bias=config.mlp_bias),
        weights.linear(f"{prefix}.mlp", (("down_proj", hidden),), inner, bias=config.mlp_bias),
    )
    return LlamaLayer(
        RMSNorm(weights.vector(f"{prefix}.input_layernorm.weight", hidden), config.rms_eps),
        attention,
        RMSNorm(weights.vector(f"{prefix}.post_attention_layernorm.weight", hidden), config.rms_eps),
        mlp,
    )
