import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from roundhouse_agent.errors import CorruptModel, UnsupportedModel
from roundhouse_agent.models.gguf_conversion import convert, packed
from roundhouse_agent.models.gguf_file import GgufFile
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.unit.roundhouse_agent.gguf_files import Weights, write_gguf


def converted(tmp_path: Path, kind: str = "llama", **options: Any) -> tuple[Weights, Path]:
    made = write_gguf(tmp_path / "model.gguf", kind, **options)
    folder = tmp_path / "out"
    folder.mkdir()
    convert(GgufFile(tmp_path / "model.gguf"), folder, lambda done, total: None)
    return made, folder


def config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_weights_come_back_under_their_names_and_in_their_row_order(tmp_path: Path, kind: str) -> None:
    made, folder = converted(tmp_path, kind)
    found = load_file(folder / "model.safetensors")
    assert set(found) == set(made)
    for name, values in made.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_quantised_weights_are_written_exactly_as_they_dequantise(tmp_path: Path) -> None:
    made, folder = converted(tmp_path, quantised="Q8_0")
    found = load_file(folder / "model.safetensors")
    for name, values in made.items():
        np.testing.assert_allclose(found[name], values, atol=np.abs(values).max() / 127, err_msg=name)
    assert config(folder)["dtype"] == "float32"


def test_half_precision_weights_keep_their_type(tmp_path: Path) -> None:
    made, folder = converted(tmp_path, quantised="F16")
    found = load_file(folder / "model.safetensors")
    assert config(folder)["dtype"] == "float16"
    np.testing.assert_array_equal(
        found["model.embed_tokens.weight"], made["model.embed_tokens.weight"].astype(np.float16)
    )


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.1415927, 1e-40], np.float32)
    assert [hex(bits) for bits in packed(values, "BF16")] == ["0x3f80", "0x3f80", "0x3f82", "0xc049", "0x1"]


def test_config_says_what_transformers_needs(tmp_path: Path) -> None:
    _, folder = converted(tmp_path, "qwen2")
    found = config(folder)
    assert found["architectures"] == ["Qwen2ForCausalLM"]
    assert (found["hidden_size"], found["num_attention_heads"], found["num_key_value_heads"]) == (64, 4, 2)
    assert (found["rms_norm_eps"], found["rope_theta"]) == (1e-05, 10000.0)
    assert found["tie_word_embeddings"] is True
    assert found["eos_token_id"] == 0


def test_an_output_matrix_of_its_own_is_not_tied(tmp_path: Path) -> None:
    _, folder = converted(tmp_path, meta={"extra": {"output.weight": np.ones((21, 64), np.float32)}})
    assert config(folder)["tie_word_embeddings"] is False
    assert "lm_head.weight" in load_file(folder / "model.safetensors")


def test_tokenizer_splits_digits_and_knows_its_added_tokens(tmp_path: Path) -> None:
    _, folder = converted(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("<|user|>ab ab12<tool>").tokens == ["<|user|>", "ab", "Ġab", "1", "2", "<tool>"]
    assert tokenizer.token_to_id("[PAD]") is None
    assert tokenizer.decode([1, 11], skip_special_tokens=True) == "ab"


def test_a_bos_token_is_added_when_the_file_says_so(tmp_path: Path) -> None:
    _, folder = converted(tmp_path, meta={"pre": "llama-bpe", "bos": 1})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("ab").tokens == ["<|user|>", "ab"]
    assert json.loads((folder / "tokenizer_config.json").read_text())["bos_token"] == "<|user|>"


def test_the_chat_template_is_kept(tmp_path: Path) -> None:
    _, folder = converted(tmp_path)
    assert "<|user|>" in (folder / "chat_template.jinja").read_text()


@pytest.mark.parametrize(
    ("kind", "meta", "reason"),
    [
        ("gemma3", {}, "architecture 'gemma3'"),
        ("llama", {"pre": "deepseek-v3"}, "pre-tokenizer 'deepseek-v3'"),
        ("llama", {"extra": {"rope_freqs.weight": np.ones(8, np.float32)}}, "rotary"),
        ("llama", {"extra": {"blk.0.ffn_gate_inp.weight": np.ones((8, 64), np.float32)}}, "ffn_gate_inp"),
    ],
)
def test_what_cannot_be_converted_is_refused_before_anything_is_written(
    tmp_path: Path, kind: str, meta: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=reason) as refused:
        converted(tmp_path, kind, meta=meta)
    assert "safetensors repository" in str(refused.value)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("cut", [0, 3, 20, 400, -2000])
def test_a_cut_file_is_corrupt(tmp_path: Path, cut: int) -> None:
    write_gguf(tmp_path / "model.gguf")
    data = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(data[:cut])
    with pytest.raises(CorruptModel, match=r"model\.gguf"):
        GgufFile(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    "head",
    [b"PK\x03\x04", b"GGUF\x09\0\0\0", b"GGUF\x03\0\0\0" + b"\xff" * 16, b"GGUF\x03\0\0\0" + b"\x01\0\0\0\0\0\0\0" * 9],
)
def test_what_is_no_gguf_is_corrupt(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(head + bytes(64))
    with pytest.raises(CorruptModel):
        GgufFile(tmp_path / "x.gguf")
