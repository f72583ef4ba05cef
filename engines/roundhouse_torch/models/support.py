"""``python -m roundhouse_torch.models.support FILE``: tables of models, formats and flags, from the code."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from roundhouse_torch.models.checkpoint import DTYPES_8_BIT, SUPPORTED_DTYPES
from roundhouse_torch.models.config import ACTIVATIONS, ROPE_TYPES
from roundhouse_torch.models.quantised import METHODS
from roundhouse_torch.models.registry import ARCHITECTURES
from roundhouse_torch.settings import KV_DTYPES, EngineSettings, flag

MACHINE = ("threads",)
"""Defaults that depend on the machine."""
HEADER = """\
# What the bundled engine supports

Made by `make engine-support` from the code; a test fails when it is stale. Whatever is not in these tables is refused
at start with a message that names what is supported, exit code 1, and becomes the replica's condition.
"""


def page() -> str:
    return "\n".join(
        (
            HEADER,
            "## Models\n",
            *table(("`architectures` of config.json", "what it is"), models()),
            "\n## Formats\n",
            *table(("what", "supported"), formats()),
            "\n## Flags and limits\n",
            *table(("flag", "default", "meaning"), flags()),
            "",
        )
    )


def models() -> Iterable[Sequence[str]]:
    for architecture, module in ARCHITECTURES.items():
        text = import_module(f"roundhouse_torch.models.{module}").__doc__ or ""
        yield f"`{architecture}`", " ".join(text.split())


def formats() -> Iterable[Sequence[str]]:
    yield "weight files", "safetensors, sharded or not (`model.safetensors.index.json`), read through mmap"
    yield "weight types", names(SUPPORTED_DTYPES)
    yield "8-bit weights", f"{names(DTYPES_8_BIT)} by {', '.join(METHODS)}; see `models/quantised.py`"
    yield "rotary embedding", ", ".join(ROPE_TYPES)
    yield "activation", ", ".join(ACTIVATIONS)
    yield "KV cache", ", ".join(KV_DTYPES)


def flags() -> Iterable[Sequence[str]]:
    for knob in fields(EngineSettings):
        yield (
            f"`{flag(knob.name)}`",
            "see text" if knob.name in MACHINE else default(knob.default),
            knob.metadata["help"],
        )


def default(value: Any) -> str:
    if value is MISSING:
        return "required"
    if isinstance(value, bool):
        return "on" if value else "off"
    return {None: "see text", "": "none", (): "none"}.get(value, f"`{value}`")


def names(dtypes: Iterable[Any]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
