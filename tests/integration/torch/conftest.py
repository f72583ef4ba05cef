"""One server of a tiny random model for all tests that do not change its life; folders for the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engine_server import EngineServer, running
from tests.support.tiny_models import write_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", {"max_position_embeddings": 2048})


@pytest.fixture(scope="session")
def server(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """1,024 blocks of 16 tokens; a queue of 32; KV events on ``events.sock`` and ``replay.sock`` of ``run_dir``."""
    run_dir = tmp_path_factory.mktemp("run")
    endpoints = ("--kv-events", f"ipc://{run_dir}/events.sock", "--kv-replay", f"ipc://{run_dir}/replay.sock")
    sizes = ("--kv-cache-bytes", "8MiB", "--max-num-seqs", "16", "--max-num-queued-reqs", "32")
    with running(tiny_folder, "--served-model-name", "tiny", "also-tiny", *sizes, *endpoints) as server:
        server.run_dir = run_dir  # type: ignore[attr-defined]
        yield server
