"""What the assembler makes of the kernels; compiled here without a GPU, in a process that is not interpreted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRACKED = Path(__file__).parents[4] / "docs" / "kernels.json"
SHARED_LIMIT = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("report") / "kernels.json"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-m", "roundhouse_torch.kernels.report", str(path)], env=env, check=True, timeout=300
    )
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def test_the_tracked_report_is_current(report: dict[str, Any]) -> None:
    assert report == json.loads(TRACKED.read_text()), "run `make kernels-report` and review what changed"


def test_no_kernel_spills_or_asks_for_more_shared_memory_than_there_is(report: dict[str, Any]) -> None:
    for name, targets in report["kernels"].items():
        for target, usage in targets.items():
            assert usage["spilled_bytes"] == 0, (name, target)
            assert usage["shared_bytes"] <= SHARED_LIMIT[target], (name, target)


def test_wide_tiles_use_the_newest_matrix_instruction(report: dict[str, Any]) -> None:
    for name in ("attention.mixed", "gemm.i8.m64", "gemm.fp8e4nv.m64"):
        assert report["kernels"][name]["sm_90"]["matrix_op"] == "wgmma.mma_async"
        assert report["kernels"][name]["sm_100"]["matrix_op"] == "tcgen05.mma"
