import json
import struct
from collections.abc import Mapping
from pathlib import Path

from roundhouse_agent.profile import count_parameters, read_folder, read_model
from roundhouse_agent.profile import describe as describe_model
from roundhouse_kv.records import Profile

TOKENIZER = {
    "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
}  # fmt: skip
CONFIG = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip


def describe(made: Mapping[str, bytes], parameters: int, stack: Mapping[str, str]) -> Profile:
    return describe_model(read_model(made, parameters), stack)


def files(**changes: object) -> dict[str, bytes]:
    made: dict[str, object] = {
        "config.json": CONFIG,
        "tokenizer.json": TOKENIZER,
        "tokenizer_config.json": {"chat_template": "{{ messages[0]['content'] }}", "eos_token": {"content": "</s>"}},
        **changes,
    }
    return {name: json.dumps(value).encode() for name, value in made.items() if value is not None}


def test_a_profile_says_what_the_model_needs() -> None:
    profile = describe(files(), 1234, {"maxModelLen": "1024"})
    assert (profile.layers, profile.hidden_size, profile.parameters, profile.max_model_len) == (4, 64, 1234, 1024)
    assert profile.kv_bytes_per_token == 2 * 4 * 2 * 8 * 2
    assert profile.variables == {"eos_token": "</s>"}
    assert profile.chat_template == "{{ messages[0]['content'] }}"
    assert profile.text is not None
    assert not profile.exact


def test_the_engines_kv_type_and_the_models_length_count() -> None:
    profile = describe(files(), 0, {"kvDtype": "fp8", "maxModelLen": "unknown"})
    assert profile.kv_bytes_per_token == 2 * 4 * 2 * 8
    assert profile.max_model_len == 2048


def test_a_template_file_wins_over_the_tokenizers_config() -> None:
    made = {**files(), "chat_template.jinja": b"{{ 'file' }}"}
    assert describe(made, 0, {}).chat_template == "{{ 'file' }}"


def test_the_default_of_several_named_templates_is_taken() -> None:
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    assert describe(files(**{"tokenizer_config.json": {"chat_template": named}}), 0, {}).chat_template == "d"


def test_a_template_that_walks_over_content_wants_parts() -> None:
    template = "{% for m in messages %}{% for part in m['content'] %}{{ part.text }}{% endfor %}{% endfor %}"
    made = {**files(), "chat_template.jinja": template.encode()}
    assert describe(made, 0, {}).content_format == "openai"
    assert describe(files(), 0, {}).content_format == "string"


def test_an_unsupported_or_missing_tokenizer_still_gives_a_profile_with_the_reason() -> None:
    unsupported = describe(
        files(**{"tokenizer.json": {**TOKENIZER, "model": {"type": "WordPiece", "vocab": {}}}}), 0, {}
    )
    assert unsupported.text is None
    assert "tokenizer" in unsupported.reason
    assert unsupported.layers == 4
    missing = describe(files(**{"tokenizer.json": None}), 0, {})
    assert "tokenizer.json" in missing.reason


def test_broken_files_are_left_out() -> None:
    made = {**files(), "config.json": b"{", "tokenizer_config.json": b"[]"}
    assert describe(made, 0, {}).layers == 0


def test_parameters_are_counted_from_the_headers_of_all_weights(tmp_path: Path) -> None:
    for number, shape in enumerate([[2, 3], [4]]):
        header = json.dumps(
            {"__metadata__": {}, "w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
        ).encode()
        (tmp_path / f"model-{number}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (tmp_path / "model-9.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0broken")
    assert count_parameters(tmp_path) == 10


def test_only_the_files_that_describe_the_model_are_read(tmp_path: Path) -> None:
    for name in ("config.json", "weights.bin"):
        (tmp_path / name).write_text("{}")
    assert set(read_folder(tmp_path).files) == {"config.json"}


def test_a_profile_tells_how_many_tokens_a_byte_makes() -> None:
    """Its only merge joins "ab", and bytes that it has no token for give none."""
    profile = describe(files(), 0, {})
    assert 0 < profile.tokens_per_ascii_byte < 0.2
    assert profile.tokens_per_other_byte == 0.0
    assert describe(files(**{"tokenizer.json": None}), 0, {}).tokens_per_ascii_byte == 0.0
