"""GGUF container: metadata as plain Python values, tensors as memory-mapped bytes with their quantisation.

The `gguf` package builds one numpy view per array element, which takes seconds for a vocabulary; this reader walks the
metadata with struct and leaves block layouts and dequantisation to that package.
"""

import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from roundhouse_agent.errors import CorruptModel, UnsupportedModel

MAGIC: Final = b"GGUF"
VERSIONS: Final = frozenset({2, 3})
_STRING, _ARRAY = 8, 9
_SCALARS: Final = {
    0: Struct("<B"), 1: Struct("<b"), 2: Struct("<H"), 3: Struct("<h"), 4: Struct("<I"), 5: Struct("<i"),
    6: Struct("<f"), 7: Struct("<?"), 10: Struct("<Q"), 11: Struct("<q"), 12: Struct("<d"),
}  # fmt: skip
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """``shape`` has the row-major order of PyTorch (GGUF's own is reversed)."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int

    @property
    def count(self) -> int:
        return prod(self.shape)


class GgufFile:
    """``meta`` maps keys to values (arrays are lists), ``tensors`` names to where they lie."""

    def __init__(self, path: Path) -> None:
        """Raises `CorruptModel` for anything that is not a whole GGUF file."""
        self.path = path
        with path.open("rb") as file:
            try:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise CorruptModel(f"{path.name} is empty: fetch it again") from error
        try:
            self.meta, self.tensors = _Walk(self._data).read()
        except (StructError, IndexError, KeyError, UnicodeDecodeError, OverflowError) as error:
            raise CorruptModel(f"{path.name} is not a readable GGUF file ({error}): fetch it again") from error
        except CorruptModel as error:
            raise CorruptModel(f"{path.name}: {error}") from error

    def floats(self, tensor: GgufTensor) -> NDArray[np.float32]:
        """The tensor dequantised to float32. Raises `UnsupportedModel` for a quantisation without a decoder."""
        raw = np.frombuffer(self._data, np.uint8, tensor.size, tensor.start)
        block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
        rows = raw.reshape(*tensor.shape[:-1], tensor.shape[-1] // block * block_bytes)
        if tensor.kind == GGMLQuantizationType.F32:
            return rows.view("<f4").reshape(tensor.shape)
        if tensor.kind == GGMLQuantizationType.F16:
            return rows.view("<f2").astype(np.float32).reshape(tensor.shape)
        try:
            values: NDArray[np.float32] = dequantize(rows, tensor.kind)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"GGUF quantisation {tensor.kind.name} is not supported: use a Q4 to Q8 file"
            ) from error
        return values.reshape(tensor.shape)


class _Walk:
    """One pass over the head of a GGUF file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def read(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        if self._data[:4] != MAGIC:
            raise CorruptModel("does not start with GGUF")
        self._at = 4
        version = self._scalar(_U32)
        if version not in VERSIONS:
            raise CorruptModel(f"GGUF version {version}, this reader knows {sorted(VERSIONS)}")
        tensor_count, meta_count = self._scalar(_U64), self._scalar(_U64)
        meta = {self._string(): self._value(self._scalar(_U32)) for _ in range(meta_count)}
        heads = [self._tensor_head() for _ in range(tensor_count)]
        alignment = int(meta.get("general.alignment", 32))
        base = -(-self._at // alignment) * alignment
        tensors = {}
        for name, shape, kind, offset in heads:
            block, block_bytes = GGML_QUANT_SIZES[kind]
            size = prod(shape) // block * block_bytes
            if base + offset + size > len(self._data):
                raise CorruptModel(f"ends inside tensor {name}")
            tensors[name] = GgufTensor(name, shape, kind, base + offset, size)
        return meta, tensors

    def _tensor_head(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        shape = tuple(self._scalar(_U64) for _ in range(self._scalar(_U32)))[::-1]
        kind = self._scalar(_U32)
        try:
            quantisation = GGMLQuantizationType(kind)
        except ValueError as error:
            raise CorruptModel(f"tensor {name} has the unknown type {kind}") from error
        return name, shape, quantisation, self._scalar(_U64)

    def _scalar(self, layout: Struct) -> Any:
        value = layout.unpack_from(self._data, self._at)[0]
        self._at += layout.size
        return value

    def _string(self) -> str:
        size = self._scalar(_U64)
        if self._at + size > len(self._data):
            raise CorruptModel("ends inside a string")
        text = self._data[self._at : self._at + size].decode()
        self._at += size
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        item, count = self._scalar(_U32), self._scalar(_U64)
        if item in (_STRING, _ARRAY):
            return [self._value(item) for _ in range(count)]
        layout = Struct(f"<{count}{_SCALARS[item].format[1:]}")
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return list(values)
