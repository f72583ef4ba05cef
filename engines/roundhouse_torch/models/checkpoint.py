"""Tensors of a folder of safetensors, sharded or not, read through mmap: pages are shared with the page cache."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from roundhouse_torch.errors import BrokenModel, UnsupportedModel

INDEX = "model.safetensors.index.json"
SUPPORTED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


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
        if name not in self._shard_of:
            raise BrokenModel(f"tensor {name} is in none of the safetensors of {self.folder}")
        tensor: torch.Tensor = self._shard_of[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise BrokenModel(f"tensor {name} has shape {tuple(tensor.shape)}, config.json says {shape}")
        if tensor.dtype not in SUPPORTED_DTYPES:
            supported = ", ".join(str(dtype).removeprefix("torch.") for dtype in SUPPORTED_DTYPES)
            raise UnsupportedModel(
                f"tensor {name} is {str(tensor.dtype).removeprefix('torch.')}; supported: {supported}"
            )
        return tensor
