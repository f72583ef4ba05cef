"""``config.json`` and ``generation_config.json`` as one frozen record. Imports no torch: the server reads it too."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundhouse_torch.errors import BrokenModel, UnsupportedModel
from roundhouse_torch.models.quantised import Scheme, parse_scheme

ROPE_TYPES = ("default", "linear", "llama3")
ACTIVATIONS = ("silu",)
MISTRAL_WINDOW = 4096
"""What Mistral's config.json means when it does not say."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary frequencies: ``theta`` is the base; the rest changes them for contexts longer than trained for."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """Radians per token for each pair of dimensions."""
        plain = [self.theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
        if self.kind == "linear":
            return [f / self.factor for f in plain]
        if self.kind == "llama3":
            return [self._llama3(f) for f in plain]
        return plain

    def _llama3(self, frequency: float) -> float:
        """Llama 3.1: long wavelengths are stretched by ``factor``, short ones kept, those between interpolated."""
        turns = self.original_max_position * frequency / (2 * math.pi)
        if turns < self.low_freq_factor:
            return frequency / self.factor
        if turns > self.high_freq_factor:
            return frequency
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - keep) * frequency / self.factor + keep * frequency


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the model's authors set for requests that leave it open."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only model. ``dtype`` is the checkpoint's; ``eos_ids`` end an answer; ``windows``: how many tokens back
    each layer sees, 0 = all; ``scheme`` tells how its weights are quantised.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_eps: float
    rope: RopeScaling
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    windows: tuple[int, ...]
    scheme: Scheme | None
    eos_ids: frozenset[int]
    defaults: GenerationDefaults

    @property
    def parameters(self) -> int:
        """Weights without norms and biases."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.num_layers * (attention + mlp) + embeddings

    @classmethod
    def read(cls, folder: Path) -> "ModelConfig":
        """Raises `ModelError`."""
        if not folder.is_dir():
            raise BrokenModel(f"model folder {folder} does not exist")
        if not (folder / "config.json").exists() and any(folder.glob("*.gguf")):
            raise BrokenModel(
                f"{folder} holds a GGUF file but no config.json; it must be converted to safetensors first"
            )
        return parse_config(
            read_json(folder / "config.json"), read_json(folder / "generation_config.json", optional=True)
        )


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Raises `BrokenModel`; an absent optional file is an empty object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if optional:
            return {}
        raise BrokenModel(f"{path.name} is missing from {path.parent}") from None
    except (OSError, ValueError) as error:
        raise BrokenModel(f"{path} is unreadable: {error}") from error
    if not isinstance(value, dict):
        raise BrokenModel(f"{path} is no JSON object")
    return value


def parse_config(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """Raises `ModelError`, naming the field that is missing or not supported."""
    scheme = parse_scheme(config["quantization_config"]) if config.get("quantization_config") else None
    activation = config.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"hidden_act {activation!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        return ModelConfig(
            architecture=str((config.get("architectures") or ["unknown"])[0]),
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden,
            intermediate_size=int(config["intermediate_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            max_position=int(config.get("max_position_embeddings", 2048)),
            rms_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=parse_rope(config),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
            windows=parse_windows(config),
            scheme=scheme,
            eos_ids=_ids(generation.get("eos_token_id")) or _ids(config.get("eos_token_id")),
            defaults=GenerationDefaults(
                temperature=float(generation.get("temperature") or 1.0),
                top_p=float(generation.get("top_p") or 1.0),
                top_k=int(generation.get("top_k") or 0),
                min_p=float(generation.get("min_p") or 0.0),
                repetition_penalty=float(generation.get("repetition_penalty") or 1.0),
            ),
        )
    except KeyError as error:
        raise BrokenModel(f"config.json has no field {error.args[0]!r}") from error
    except (TypeError, ValueError) as error:
        raise BrokenModel(f"config.json has a field of the wrong type: {error}") from error


def parse_windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Sliding windows as `transformers` reads them: per layer if ``layer_types`` says so, Qwen's from a layer on."""
    layers, qwen = int(config["num_hidden_layers"]), str(config.get("model_type", "")).startswith("qwen")
    default = MISTRAL_WINDOW if config.get("model_type") == "mistral" else 0
    window = int(config.get("sliding_window", default) or 0)
    if qwen and not config.get("use_sliding_window", False):
        window = 0
    if types := config.get("layer_types"):
        if unknown := set(types) - {"full_attention", "sliding_attention"}:
            raise UnsupportedModel(
                f"layer_types {', '.join(sorted(unknown))} are not supported; supported: "
                "full_attention, sliding_attention"
            )
        return tuple(window if kind == "sliding_attention" else 0 for kind in types)
    if qwen:
        first = int(config.get("max_window_layers", 28))
        return tuple(window if index >= first else 0 for index in range(layers))
    return (window,) * layers if config.get("model_type") == "mistral" else (0,) * layers


def parse_rope(config: Mapping[str, Any]) -> RopeScaling:
    """Both spellings: ``rope_parameters`` (transformers 5) and ``rope_theta`` + ``rope_scaling`` (before)."""
    scaling = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in ROPE_TYPES:
        raise UnsupportedModel(f"rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    return RopeScaling(
        theta=float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        kind=kind,
        factor=float(scaling.get("factor") or 1.0),
        low_freq_factor=float(scaling.get("low_freq_factor") or 1.0),
        high_freq_factor=float(scaling.get("high_freq_factor") or 4.0),
        original_max_position=int(
            scaling.get("original_max_position_embeddings") or config.get("max_position_embeddings") or 8192
        ),
    )


def _ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset((value,))
