"""Compile every kernel for sm_80, sm_90 and sm_100 without a GPU, and list what the assembler made of it.

``python -m roundhouse_torch.kernels.report FILE`` writes registers, spilled bytes, shared memory and the matrix
instruction of each variant as JSON. The file is tracked: a change that makes a kernel spill shows up in review.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from roundhouse_torch.kernels import activation, attention, gemm, norm, rope, sampling

CAPABILITIES = (80, 90, 100)
MATRIX_OPS = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel with the types and constants of a use. ``aligned``: arguments that are multiples of 16."""

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: Sequence[str] = ()
    least_capability: int = 80
    warps: int = 4
    options: Mapping[str, Any] = field(default_factory=dict)


def variants() -> list[Variant]:
    heads = {"GROUP": 4, "KV_HEADS": 8, "HEAD_DIM": 128, "DIM": 128, "BLOCK_SIZE": 16}
    lists = {"tables": "*i32", "lengths": "*i32", "scale": "fp32", "key_scale": "fp32"}
    strides = {"table_stride": "i32", "block_stride": "i32", "value_offset": "i32"}
    mixed = {
        "out": "*bf16",
        "q": "*bf16",
        "cache": "*bf16",
        "starts": "*i32",
        "value_scale": "fp32",
        "sequences": "i32",
    }
    mixed |= lists | strides
    split = {"partial": "*fp32", "highs": "*fp32", "sums": "*fp32", "q": "*bf16", "cache": "*bf16"} | lists | strides
    stride_names = tuple(strides)
    found = [
        Variant(
            "attention.mixed",
            attention.mixed_kernel,
            mixed,
            heads | {"ROWS": 64, "TILE": 32, "WINDOW": 0},
            stride_names,
        ),
        Variant(
            "attention.mixed.window",
            attention.mixed_kernel,
            mixed,
            heads | {"ROWS": 64, "TILE": 32, "WINDOW": 4096},
            stride_names,
        ),
        Variant(
            "attention.decode",
            attention.decode_kernel,
            split,
            heads | {"ROWS": 16, "TILE": 16, "SPLITS": 16, "WINDOW": 0},
            stride_names,
        ),
        Variant(
            "attention.decode.fp8",
            attention.decode_kernel,
            split | {"cache": "*fp8e4nv"},
            heads | {"ROWS": 16, "TILE": 32, "SPLITS": 16, "WINDOW": 0},
            stride_names,
            90,
        ),
        Variant(
            "attention.merge",
            attention.merge_kernel,
            {"out": "*bf16", "partial": "*fp32", "highs": "*fp32", "sums": "*fp32", "value_scale": "fp32"},
            {"HEAD_DIM": 128, "DIM": 128, "SPLITS": 16},
        ),
        Variant(
            "norm",
            norm.norm_kernel,
            {"out": "*bf16", "x": "*bf16", "residual": "*bf16", "weight": "*bf16", "width": "i32", "eps": "fp32"},
            {"HAS_RESIDUAL": True, "BLOCK": 4096},
            ("width",),
        ),
        Variant(
            "rope",
            rope.rope_kernel,
            {
                "q": "*bf16",
                "k": "*bf16",
                "v": "*bf16",
                "cos": "*fp32",
                "sin": "*fp32",
                "positions": "*i64",
                "slots": "*i64",
                "cache": "*bf16",
                "block_stride": "i32",
                "value_offset": "i32",
                "key_scale": "fp32",
                "value_scale": "fp32",
            },
            {"HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": 128, "HALF": 64, "BLOCK_SIZE": 16},
            ("block_stride", "value_offset"),
        ),
        Variant(
            "silu", activation.silu_kernel, {"out": "*bf16", "x": "*bf16", "width": "i32"}, {"BLOCK": 1024}, ("width",)
        ),
        Variant(
            "sampling",
            sampling.sample_kernel,
            {
                "out": "*i32",
                "logits": "*fp32",
                "temperatures": "*fp32",
                "top_ks": "*i32",
                "top_ps": "*fp32",
                "seeds": "*i64",
                "steps": "*i32",
                "vocabulary": "i32",
            },
            {"BLOCK": 8192, "CHUNKS": 16},
            ("vocabulary",),
            warps=8,
        ),
    ]
    for kind, least in (("i8", 80), ("fp8e4nv", 90)):
        types = {
            "out": "*bf16",
            "x": "*bf16",
            "weight": f"*{kind}",
            "scales": "*fp32",
            "m": "i32",
            "n": "i32",
            "k": "i32",
        }
        for rows in (16, 64):
            constants = {"BM": rows, "BN": 64, "BK": 64}
            found.append(Variant(f"gemm.{kind}.m{rows}", gemm.gemm_kernel, types, constants, ("n", "k"), least))
    return found


def compile_variant(variant: Variant, capability: int) -> dict[str, Any]:
    """Registers, spilled bytes, shared memory and matrix instruction of one compiled variant."""
    names = variant.kernel.arg_names
    signature = {name: variant.types.get(name, "constexpr") for name in names}
    pointers = {name for name, kind in variant.types.items() if kind.startswith("*")}
    divisible = {(names.index(n),): [["tt.divisibility", 16]] for n in pointers | set(variant.aligned)}
    source = ASTSource(
        variant.kernel, signature, {(names.index(n),): v for n, v in variant.constants.items()}, divisible
    )
    options = {"num_warps": variant.warps, **variant.options}
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
        for variant in variants()
    }
    return {"triton": triton.__version__, "kernels": kernels}


def main() -> None:
    Path(sys.argv[1]).write_text(json.dumps(build_report(), indent=2) + "\n")


if __name__ == "__main__":
    main()
