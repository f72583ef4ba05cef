"""Which architectures of ``config.json`` are implemented, and where. Imports no torch until a model is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, cast

from roundhouse_torch.errors import UnsupportedModel

if TYPE_CHECKING:
    from roundhouse_torch.models.decoder import DecoderFactory

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def require_supported(architecture: str) -> None:
    """Raises `UnsupportedModel`, naming what is supported."""
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"architecture {architecture!r} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}"
        )


def load_factory(architecture: str) -> "DecoderFactory":
    """The ``build`` function of the family's module. Raises `UnsupportedModel`."""
    require_supported(architecture)
    module = import_module(f"roundhouse_torch.models.{ARCHITECTURES[architecture]}")
    return cast("DecoderFactory", module.build)
