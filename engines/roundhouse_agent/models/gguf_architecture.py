"""GGUF metadata → ``config.json`` and tensor names as `transformers` knows them, for Llama-class decoders.

llama.cpp stores the rows of Llama's query and key projections interleaved for its own rotary embedding; they are put
back into the half-rotated order here. Qwen's are stored as they are.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from roundhouse_agent.errors import UnsupportedModel
from roundhouse_agent.models.gguf_file import GgufFile

CLASSES: Final = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_GLOBAL: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER: Final = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the metadata says of the decoder."""

    kind: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    norm_epsilon: float
    rope_theta: float
    tied: bool
    biased: bool

    def tensor_name(self, name: str) -> str:
        """Name in `transformers`. Raises `UnsupportedModel` for a tensor that these architectures do not have."""
        if name in _GLOBAL:
            return _GLOBAL[name]
        if (match := _BLOCK.fullmatch(name)) and match[2] in _LAYER:
            return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"
        raise UnsupportedModel(
            f"GGUF tensor {name} cannot be converted for {self.kind}: use the model's safetensors repository"
        )

    def reorder(self, name: str) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
        """What to do with the rows of this tensor."""
        match = _BLOCK.fullmatch(name)
        if self.kind == "llama" and match and match[2] in ("attn_q", "attn_k"):
            heads = self.heads if match[2] == "attn_q" else self.kv_heads
            return lambda values: half_rotated(values, heads)
        return lambda values: values

    def config(self, dtype: str, special: Mapping[str, Any]) -> dict[str, Any]:
        """``config.json``; ``special`` holds the special token ids."""
        return {
            "architectures": [CLASSES[self.kind]], "model_type": self.kind, "vocab_size": self.vocab,
            "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "max_position_embeddings": self.context, "rms_norm_eps": self.norm_epsilon, "rope_theta": self.rope_theta,
            "hidden_act": "silu", "attention_bias": self.biased, "mlp_bias": False, "tie_word_embeddings": self.tied,
            "dtype": dtype, "torch_dtype": dtype, **special,
        }  # fmt: skip


def half_rotated(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's interleaving: rows (head, pair, half) → (head, half, pair)."""
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def read_architecture(file: GgufFile) -> Architecture:
    """Raises `UnsupportedModel` with the architecture's name or the missing key."""
    kind = str(file.meta.get("general.architecture", "unknown"))
    if kind not in CLASSES:
        raise UnsupportedModel(
            f"GGUF architecture {kind!r} cannot be converted (known: {', '.join(CLASSES)}): "
            "use the model's safetensors repository"
        )
    if "rope_freqs.weight" in file.tensors or file.meta.get(f"{kind}.rope.scaling.type", "none") != "none":
        raise UnsupportedModel(
            "GGUF with scaled rotary embedding cannot be converted: use the model's safetensors repository"
        )
    try:
        return _read(kind, file)
    except KeyError as error:
        raise UnsupportedModel(
            f"GGUF metadata lacks {error.args[0]}: use the model's safetensors repository"
        ) from error


def _read(kind: str, file: GgufFile) -> Architecture:
    meta = {key.removeprefix(f"{kind}."): value for key, value in file.meta.items()}
    heads, hidden = int(meta["attention.head_count"]), int(meta["embedding_length"])
    return Architecture(
        kind=kind,
        layers=int(meta["block_count"]),
        hidden=hidden,
        intermediate=int(meta["feed_forward_length"]),
        heads=heads,
        kv_heads=int(meta.get("attention.head_count_kv", heads)),
        head_dim=int(meta.get("attention.key_length", hidden // heads)),
        vocab=file.tensors["token_embd.weight"].shape[0],
        context=int(meta["context_length"]),
        norm_epsilon=_shortest(meta["attention.layer_norm_rms_epsilon"]),
        rope_theta=_shortest(meta.get("rope.freq_base", 10000.0)),
        tied="output.weight" not in file.tensors,
        biased="blk.0.attn_q.bias" in file.tensors,
    )


def _shortest(value: float) -> float:
    """The decimal that a 32-bit float was written from (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))
