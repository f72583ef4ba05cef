"""Write a safetensors file tensor by tensor: u64 size, JSON header, raw little-endian data.

The `safetensors` package wants all tensors in memory at once and numpy has no bfloat16; both matter for big models.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ITEM_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class TensorHead:
    """``kind`` is the safetensors name of the type: F32, F16 or BF16."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def size(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.kind]


class SafetensorsWriter:
    """Context manager; ``write`` takes the tensors in the order of ``heads``."""

    def __init__(self, path: Path, heads: Sequence[TensorHead]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for head in heads:
            header[head.name] = {"dtype": head.kind, "shape": list(head.shape), "data_offsets": [at, at + head.size]}
            at += head.size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._heads = iter(heads)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def write(self, values: NDArray[Any]) -> None:
        head = next(self._heads)
        if values.nbytes != head.size:
            raise ValueError(f"tensor {head.name} has {values.nbytes} bytes, its header says {head.size}")
        self._file.write(np.ascontiguousarray(values).data)

    def __enter__(self) -> "SafetensorsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
