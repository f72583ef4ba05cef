"""What a gateway must know of the engine's model, from the files that describe it.

Built without ``exact``; the self-test sets that. A tokenizer whose bytes cannot be reproduced still gives a profile,
with the reason: its size is needed to predict cost in any case.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import unpack
from typing import Any, Final

from roundhouse_kv.chat_files import chat_template, special_tokens
from roundhouse_kv.errors import UnsupportedTokenizer
from roundhouse_kv.records import Profile
from roundhouse_kv.render import content_format
from roundhouse_kv.token_bytes import TokenBytes
from roundhouse_kv.token_table import pack_table

from roundhouse_agent.density import Density, density

log = logging.getLogger(__name__)

FILES: Final = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "chat_template.json",
)  # fmt: skip
_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}


@dataclass(frozen=True, slots=True)
class Model:
    """What the model's files say. ``parameters`` 0 = not known. ``table`` None: no prefix keys, for ``reason``.

    ``density``: of the tokenizer, None when it cannot be used. ``packed``: the table for gateways."""

    files: Mapping[str, bytes]
    parameters: int
    table: TokenBytes | None
    reason: str
    density: Density | None = None
    packed: bytes = b""


def read_model(files: Mapping[str, bytes], parameters: int) -> Model:
    """Parse the tokenizer, which takes a while for a big vocabulary."""
    if "tokenizer.json" not in files:
        return Model(files, parameters, None, "the model has no tokenizer.json")
    try:
        tokenizer = files["tokenizer.json"]
        table = TokenBytes.load(tokenizer)
        return Model(files, parameters, table, "", density(tokenizer), pack_table(table.known()))
    except UnsupportedTokenizer as error:
        return Model(files, parameters, None, f"tokenizer: {error}")


def read_folder(folder: Path) -> Model:
    try:
        files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    except OSError as error:
        return Model({}, 0, None, f"the model's files cannot be read: {error.strerror}")
    return read_model(files, count_parameters(folder))


def describe(model: Model, stack: Mapping[str, str]) -> Profile:
    """``stack``: what the engine says that it runs."""
    config, tokenizer_config = _json(model.files, "config.json"), _json(model.files, "tokenizer_config.json")
    text_config = {**config, **config.get("text_config", {})}
    jinja = model.files.get("chat_template.jinja")
    template = chat_template(jinja, _json(model.files, "chat_template.json"), tokenizer_config)
    return Profile(
        text=model.table.rules if model.table is not None else None,
        chat_template=template,
        content_format="openai" if content_format(template) == "openai" else "string",
        variables=special_tokens(_json(model.files, "special_tokens_map.json"), tokenizer_config),
        reason=model.reason or ("" if template else "the model has no chat template"),
        parameters=model.parameters or int(config.get("num_parameters", 0)),
        layers=int(text_config.get("num_hidden_layers", 0)),
        hidden_size=int(text_config.get("hidden_size", 0)),
        kv_bytes_per_token=_kv_bytes(text_config, stack.get("kvDtype", "")),
        max_model_len=_length(stack.get("maxModelLen", "")) or int(text_config.get("max_position_embeddings", 0)),
        tokens_per_ascii_byte=model.density.ascii if model.density is not None else 0.0,
        tokens_per_other_byte=model.density.other if model.density is not None else 0.0,
    )


def count_parameters(folder: Path) -> int:
    """Elements of all tensors, read from the headers of the safetensors files."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                header = json.loads(file.read(unpack("<Q", file.read(8))[0]))
        except (OSError, ValueError) as error:
            log.warning("weights_unreadable", extra={"file": path.name, "reason": str(error)})
            continue
        total += sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return total


def _kv_bytes(config: Mapping[str, Any], kv_dtype: str) -> int:
    heads = int(config.get("num_attention_heads") or 0)
    if not heads:
        return 0
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or int(config.get("hidden_size", 0)) // heads)
    own = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    size = _BYTES.get(kv_dtype.removeprefix("torch.")) or _BYTES.get(own, 2)
    return 2 * int(config.get("num_hidden_layers", 0)) * kv_heads * head_dim * size


def _length(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        value = json.loads(files.get(name, b"{}"))
    except ValueError as error:
        log.warning("model_file_unreadable", extra={"file": name, "reason": str(error)})
        return {}
    return value if isinstance(value, dict) else {}
