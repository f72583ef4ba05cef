"""What can be wrong with a model folder, and that the message says what would work."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from roundhouse_torch.errors import BrokenModel, ModelError, UnsupportedModel
from roundhouse_torch.models.checkpoint import Checkpoint
from roundhouse_torch.models.config import ModelConfig, parse_config
from roundhouse_torch.models.registry import load_factory, require_supported
from roundhouse_torch.models.weights import Weights
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from tests.support.tiny_models import LLAMA, write_model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "yarn"}},
            "rope type 'yarn' is not supported; supported: default, linear, llama3",
        ),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantised weights \(gptq\) are not supported"),
        ({"hidden_size": None}, "wrong type"),
    ],
)
def test_unsupported_settings_name_what_is_supported(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_config({**LLAMA, **change}, {})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(BrokenModel, match="no field 'vocab_size'"):
        parse_config({name: value for name, value in LLAMA.items() if name != "vocab_size"}, {})


def test_an_unknown_architecture_names_the_known_ones() -> None:
    known = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
    with pytest.raises(UnsupportedModel, match=f"'GPT2LMHeadModel' is not supported; supported: {known}"):
        require_supported("GPT2LMHeadModel")


def test_missing_folder_and_config_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="does not exist"):
        ModelConfig.read(tmp_path / "nothing")
    with pytest.raises(BrokenModel, match=r"config\.json is missing"):
        ModelConfig.read(tmp_path)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(BrokenModel, match="must be converted"):
        ModelConfig.read(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BrokenModel, match="unreadable"):
        ModelConfig.read(tmp_path)


def test_both_spellings_of_rope_settings_are_read() -> None:
    old = parse_config({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}, {})
    new = parse_config(
        {**LLAMA, "rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}, {}
    )
    assert (old.rope.theta, old.rope.kind, old.rope.factor) == (5e5, "linear", 2.0)
    assert old.rope == new.rope


def test_generation_config_gives_end_tokens_and_defaults() -> None:
    config = parse_config(LLAMA, {"eos_token_id": [2, 7], "temperature": 0.6, "top_p": 0.9, "top_k": 20})
    assert config.eos_ids == {2, 7}
    assert (config.defaults.temperature, config.defaults.top_p, config.defaults.top_k) == (0.6, 0.9, 20)
    assert parse_config(LLAMA, {}).eos_ids == {2}


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    whole = Checkpoint(write_model(tmp_path / "one"))
    sharded = Checkpoint(write_model(tmp_path / "three", shards=3))
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(whole.get(name, (96, 64)), sharded.get(name, (96, 64)))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(BrokenModel, match=r"1 of 3 shards are missing from .*: model-00002-of-00003\.safetensors"):
        Checkpoint(folder)


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BrokenModel, match=r"model\.safetensors is damaged or incomplete"):
        Checkpoint(folder)


def test_no_weights_at_all_says_which_format_works(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="supported weights: safetensors"):
        Checkpoint(tmp_path)


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}}))
    with pytest.raises(BrokenModel, match=r"index\.json is unreadable"):
        Checkpoint(tmp_path)


def test_tensors_of_wrong_name_shape_and_type_are_named(tmp_path: Path) -> None:
    save_file({"a": np.zeros((2, 3), np.float32)}, tmp_path / "model.safetensors")
    save_torch({"b": torch.zeros(4, dtype=torch.float8_e4m3fn)}, tmp_path / "more.safetensors")
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(BrokenModel, match="tensor c is in none"):
        checkpoint.get("c", (1,))
    with pytest.raises(BrokenModel, match=r"tensor a has shape \(2, 3\), config\.json says \(3, 2\)"):
        checkpoint.get("a", (3, 2))
    with pytest.raises(UnsupportedModel, match="tensor b is float8_e4m3fn; supported: float32, bfloat16, float16"):
        checkpoint.get("b", (4,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_checkpoints_are_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = write_model(tmp_path)
    config = ModelConfig.read(folder)
    checkpoint = Checkpoint(folder)
    save_torch({name: checkpoint._shard_of[name].get_tensor(name).to(dtype) for name in checkpoint._shard_of},
               folder / "half.safetensors")  # fmt: skip
    (folder / "model.safetensors").unlink()
    weights = Weights(Checkpoint(folder), torch.device("cpu"), torch.float32)
    model = load_factory(config.architecture)(config, weights, 64)
    assert model.logits(torch.zeros(1, 64)).dtype == torch.float32
