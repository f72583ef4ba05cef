"""One GGUF file → a folder as `transformers` and every engine load it. Needs numpy only.

**Precision.** Weights that were F16 or BF16 in the file keep that type. Quantised weights of a model below a billion
parameters are written as F32, exactly as they dequantise: such a model runs on CPUs too, which compute in F32, and two
engines on one machine then map the same pages without a copy. Bigger ones are written as BF16, what GPUs compute in,
at half the size; its rounding (2⁻⁹) lies below the step of an 8-bit block.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from roundhouse_agent.models.gguf_architecture import read_architecture
from roundhouse_agent.models.gguf_file import GgufFile, GgufTensor
from roundhouse_agent.models.gguf_tokenizer import special_ids, tokenizer_config, tokenizer_json
from roundhouse_agent.models.safetensors_file import SafetensorsWriter, TensorHead

F32_BELOW_PARAMETERS: Final = 1_000_000_000
WORKERS: Final = 2  # dequantisation is bound by memory bandwidth; each holds one tensor

_NAMES: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}

Report = Callable[[int, int], None]


def converted_size(file: GgufFile) -> int:
    """Bytes that the converted folder will take."""
    return sum(tensor.count for tensor in file.tensors.values()) * _BYTES[stored_type(file)] + (64 << 20)


def stored_type(file: GgufFile) -> str:
    """The one type of all converted tensors; see the module's text."""
    matrices = Counter(tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1)
    if set(matrices) == {GGMLQuantizationType.BF16}:
        return "BF16"
    if set(matrices) == {GGMLQuantizationType.F16}:
        return "F16"
    return "F32" if sum(tensor.count for tensor in file.tensors.values()) < F32_BELOW_PARAMETERS else "BF16"


def convert(file: GgufFile, folder: Path, report: Report) -> None:
    """Write weights, config, tokenizer and template of ``file`` into ``folder``; reports bytes read and their total.

    Raises `UnsupportedModel` before it writes anything when the model cannot be converted.
    """
    architecture, stored = read_architecture(file), stored_type(file)
    tokenizer = tokenizer_json(file.meta)
    names = {tensor.name: architecture.tensor_name(tensor.name) for tensor in file.tensors.values()}
    _write_weights(file, folder, stored, names, architecture.reorder, report)
    special = special_ids(file.meta)
    _write_json(folder / "config.json", architecture.config(_NAMES[stored], special))
    _write_json(folder / "generation_config.json", special)
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(file.meta))
    if template := file.meta.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _write_weights(
    file: GgufFile,
    folder: Path,
    stored: str,
    names: dict[str, str],
    reorder: Callable[[str], Callable[[NDArray[np.float32]], NDArray[np.float32]]],
    report: Report,
) -> None:
    tensors = sorted(file.tensors.values(), key=lambda tensor: names[tensor.name])
    total, done = sum(tensor.size for tensor in tensors), 0
    heads = [TensorHead(names[tensor.name], tensor.shape, stored) for tensor in tensors]

    def values(tensor: GgufTensor) -> NDArray[Any]:
        return packed(reorder(tensor.name)(file.floats(tensor)), stored)

    with SafetensorsWriter(folder / "model.safetensors", heads) as out:
        for tensor, array in zip(tensors, _ahead(values, tensors), strict=True):
            out.write(array)
            done += tensor.size
            report(done, total)


def _ahead(work: Callable[[GgufTensor], NDArray[Any]], tensors: list[GgufTensor]) -> Iterator[NDArray[Any]]:
    """Results in order, a few tensors ahead of the writer, so that memory stays at a few tensors."""
    with ThreadPoolExecutor(WORKERS) as pool:
        pending: deque[Future[NDArray[Any]]] = deque()
        for tensor in tensors:
            pending.append(pool.submit(work, tensor))
            if len(pending) > WORKERS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def packed(values: NDArray[np.float32], stored: str) -> NDArray[Any]:
    """Little-endian array whose bytes are the values in type ``stored``."""
    if stored == "F32":
        return np.asarray(values, "<f4")
    if stored == "F16":
        return values.astype("<f2")
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    # Round to nearest even; weights are finite, so no NaN can turn into an infinity here.
    return np.asarray((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, "<u2")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
