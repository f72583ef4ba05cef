"""Compile every kernel for sm_80, sm_90 and sm_100 without a GPU, and list what the assembler made of it.

``python -m roundhouse_torch.kernels.report FILE`` writes registers, spilled bytes, shared memory and the matrix
instruction of each variant as JSON. The file is tracked: a change that makes a kernel spill shows up in review.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from roundhouse_torch.kernels import activation, attention, gemm, norm, rope, sampling

CAPABILITIES = (80, 90, 100)
MATRIX_OPS = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")


HEADS = {"GROUP": 4, "KV_HEADS": 8, "HEAD_DIM": 128, "DIM": 128, "BLOCK_SIZE": 16}
"""Llama-3.1-8B's."""
BY_TYPE = {
    "*bf16": ("out", "q", "k", "v", "x", "cache", "residual", "weight"),
    "*fp32": ("partial", "highs", "sums", "cos", "sin", "scales", "logits", "temperatures", "top_ps"),
    "*i32": ("tables", "starts", "lengths", "top_ks"),
    "*i64": ("positions", "slots", "seeds"),
    "fp32": ("scale", "key_scale", "value_scale", "eps"),
    "i32": ("table_stride", "block_stride", "value_offset", "sequences", "width", "vocabulary", "m", "n"),
}
TYPES = {name: kind for kind, names in BY_TYPE.items() for name in names}
"""Of the kernels' arguments, unless a variant says otherwise."""
ALIGNED = {"table_stride", "block_stride", "value_offset", "width", "vocabulary", "n", "k"}
"""Numbers that are multiples of 16, as all pointers are."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel with the constants, and the other ``types``, of a use."""

    name: str
    kernel: Any
    constants: Mapping[str, Any]
    types: dict[str, str] = field(default_factory=dict)
    least_capability: int = 80
    warps: int = 4


def gemm_variant(kind: str, rows: int, least_capability: int) -> Variant:
    types = {"weight": f"*{kind}", "k": "i32"}
    constants = {"BM": rows, "BN": 64, "BK": 64}
    return Variant(f"gemm.{kind}.m{rows}", gemm.gemm_kernel, constants, types, least_capability)


DECODE = HEADS | {"ROWS": 16, "TILE": 16, "SPLITS": 16, "WINDOW": 0}
MIXED = HEADS | {"ROWS": 64, "TILE": 32, "WINDOW": 0}
VARIANTS = (
    Variant("attention.mixed", attention.mixed_kernel, MIXED),
    Variant("attention.mixed.window", attention.mixed_kernel, MIXED | {"WINDOW": 4096}),
    Variant("attention.decode", attention.decode_kernel, DECODE),
    Variant("attention.decode.fp8", attention.decode_kernel, DECODE | {"TILE": 32}, {"cache": "*fp8e4nv"}, 90),
    Variant("attention.merge", attention.merge_kernel, {"HEAD_DIM": 128, "DIM": 128, "SPLITS": 16}),
    Variant("norm", norm.norm_kernel, {"HAS_RESIDUAL": True, "BLOCK": 4096}),
    Variant("rope", rope.rope_kernel, {"HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": 128, "HALF": 64, "BLOCK_SIZE": 16}),
    Variant("silu", activation.silu_kernel, {"BLOCK": 1024}),
    Variant("sampling", sampling.sample_kernel, {"BLOCK": 8192, "CHUNKS": 16}, {"out": "*i32"}, warps=8),
    *(gemm_variant("i8", rows, 80) for rows in (16, 64)),
    *(gemm_variant("fp8e4nv", rows, 90) for rows in (16, 64)),
)


def compile_variant(variant: Variant, capability: int) -> dict[str, Any]:
    """Registers, spilled bytes, shared memory and matrix instruction of one compiled variant."""
    names = variant.kernel.arg_names
    types = {name: (TYPES | variant.types)[name] for name in names if name not in variant.constants}
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name in ALIGNED]
    source = ASTSource(
        variant.kernel,
        {name: types.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in variant.constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": variant.warps}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = compiled.asm["ptx"]
    usage = resource_usage(compiled.asm["cubin"])
    matrix = next((op for op in MATRIX_OPS if op in ptx), "none")
    return {
        "registers": usage["REG"],
        "spilled_bytes": usage["LOCAL"],
        "shared_bytes": compiled.metadata.shared,
        "matrix_op": matrix,
    }


def resource_usage(cubin: bytes) -> dict[str, int]:
    """What cuobjdump, which Triton ships, says of the binary's one kernel."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", listing)}


def build_report() -> dict[str, Any]:
    kernels = {
        variant.name: {
            f"sm_{capability}": compile_variant(variant, capability)
            for capability in CAPABILITIES
            if capability >= variant.least_capability
        }
        for variant in VARIANTS
    }
    return {"triton": triton.__version__, "kernels": kernels}


def main() -> None:
    Path(sys.argv[1]).write_text(json.dumps(build_report(), indent=2) + "\n")


if __name__ == "__main__":
    main()
