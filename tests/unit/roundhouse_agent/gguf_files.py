"""Small GGUF files of random weights, as llama.cpp's converter would write them from a `transformers` model."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

HIDDEN, HEADS, KV_HEADS, LAYERS, INTERMEDIATE = 64, 4, 2, 2, 96
HEAD_DIM = HIDDEN // HEADS
Weights = dict[str, NDArray[np.float32]]

TOKENS = ["<|end|>", "<|user|>", *"abcdefgh", "Ġ", "ab", "cd", "Ġab", "1", "2", "Ċ", "<tool>", "[PAD]"]
MERGES = ["a b", "c d", "Ġ ab"]
KINDS = [3, 3, *[1] * (len(TOKENS) - 4), 4, 5]


def weights(kind: str) -> Weights:
    """By the names of `transformers`, in its own row order."""
    random = np.random.default_rng(7)

    def draw(*shape: int) -> NDArray[np.float32]:
        return random.standard_normal(shape).astype(np.float32)

    made: Weights = {"model.embed_tokens.weight": draw(len(TOKENS), HIDDEN), "model.norm.weight": draw(HIDDEN)}
    shapes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}."
        for name, rows in shapes.items():
            made[f"{block}self_attn.{name}_proj.weight"] = draw(rows, HIDDEN)
            if kind == "qwen2":
                made[f"{block}self_attn.{name}_proj.bias"] = draw(rows)
        if kind == "qwen3":
            made[f"{block}self_attn.q_norm.weight"] = draw(HEAD_DIM)
            made[f"{block}self_attn.k_norm.weight"] = draw(HEAD_DIM)
        made[f"{block}self_attn.o_proj.weight"] = draw(HIDDEN, HEADS * HEAD_DIM)
        for name, shape in (
            ("gate", (INTERMEDIATE, HIDDEN)),
            ("up", (INTERMEDIATE, HIDDEN)),
            ("down", (HIDDEN, INTERMEDIATE)),
        ):
            made[f"{block}mlp.{name}_proj.weight"] = draw(*shape)
        made[f"{block}input_layernorm.weight"] = draw(HIDDEN)
        made[f"{block}post_attention_layernorm.weight"] = draw(HIDDEN)
    return made


_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    stem, _, end = rest.rpartition(".")
    return f"blk.{layer}.{_NAMES[stem]}.{end}"


def interleaved(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """What llama.cpp's converter does to Llama's query and key rows."""
    return (
        values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def write_gguf(
    path: Path, kind: str = "llama", *, quantised: str = "F32", meta: dict[str, Any] | None = None
) -> Weights:
    """Write the file; returns its weights as `transformers` has them, before quantisation."""
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre((meta or {}).get("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_merges(MERGES)
    writer.add_token_types(KINDS)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}")
    if bos := (meta or {}).get("bos"):
        writer.add_bos_token_id(bos)
        writer.add_add_bos_token(True)
    made = weights(kind)
    for name, values in made.items():
        heads = (
            {"q": HEADS, "k": KV_HEADS}.get(name.split(".")[-2][0]) if "q_proj" in name or "k_proj" in name else None
        )
        stored = interleaved(values, heads) if heads and kind == "llama" else values
        _add(writer, gguf_name(name), stored, quantised)
    for name, values in (meta or {}).get("extra", {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def _add(writer: gguf.GGUFWriter, name: str, values: NDArray[np.float32], quantised: str) -> None:
    if quantised == "F32" or values.ndim == 1:
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType[quantised]
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
