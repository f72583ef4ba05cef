"""Tensors of a folder of safetensors, sharded or not, read through mmap: pages are shared with the page cache."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from roundhouse_torch.errors import BrokenModel, UnsupportedModel

INDEX = "model.safetensors.index.json"
SUPPORTED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DTYPES_8_BIT = (torch.float8_e4m3fn, torch.int8)
_STORED_8_BIT = ("F8_E4M3", "I8")


def shard_names(folder: Path) -> list[str]:
    """File names that together hold the weights. Raises `BrokenModel` when one is missing."""
    index = folder / INDEX
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise BrokenModel(f"{index} is unreadable: {error!r}") from error
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise BrokenModel(f"{folder} holds no *.safetensors; supported weights: safetensors")
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise BrokenModel(f"{len(missing)} of {len(names)} shards are missing from {folder}: {', '.join(missing)}")
    return names


class Checkpoint:
    """``get`` gives a tensor by name. Shards are opened when made; a name that no shard has is a `BrokenModel`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shard_of: dict[str, Any] = {}
        for name in shard_names(folder):
            try:
                shard: Any = safe_open(folder / name, framework="pt")
            except (SafetensorError, OSError) as error:
                raise BrokenModel(f"{folder / name} is damaged or incomplete: {error}") from error
            self._shard_of.update(dict.fromkeys(shard.keys(), shard))

    def __contains__(self, name: str) -> bool:
        return name in self._shard_of

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Raises `ModelError` when the tensor is absent, of another shape, or of a type that is not supported."""
        return self._checked(name, shape, SUPPORTED_DTYPES)

    def get_8_bit(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See `get`; its scales are elsewhere."""
        return self._checked(name, shape, DTYPES_8_BIT)

    def is_8_bit(self, name: str) -> bool:
        return name in self._shard_of and self._shard_of[name].get_slice(name).get_dtype() in _STORED_8_BIT

    def any(self, name: str) -> torch.Tensor:
        """Whatever its shape and type."""
        tensor: torch.Tensor = self._shard_of[name].get_tensor(name)
        return tensor

    def _checked(self, name: str, shape: tuple[int, ...], supported: tuple[torch.dtype, ...]) -> torch.Tensor:
        if name not in self._shard_of:
            raise BrokenModel(f"tensor {name} is in none of the safetensors of {self.folder}")
        tensor = self.any(name)
        if tuple(tensor.shape) != shape:
            raise BrokenModel(f"tensor {name} has shape {tuple(tensor.shape)}, config.json says {shape}")
        if tensor.dtype not in supported:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in supported)
            raise UnsupportedModel(f"tensor {name} is {str(tensor.dtype).removeprefix('torch.')}; supported: {names}")
        return tensor
