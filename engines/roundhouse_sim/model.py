"""The files that describe the simulated model: tokenizer, chat template, config. They are package data."""

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json")


@cache
def model_file(name: str) -> bytes:
    """Raises `KeyError` for a file that the model does not have."""
    if name not in FILES:
        raise KeyError(name)
    return files("roundhouse_sim").joinpath("data", name).read_bytes()


def dump_model(folder: Path) -> None:
    """Write all files into ``folder``, as an engine's model folder has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).write_bytes(model_file(name))
