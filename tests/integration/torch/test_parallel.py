"""Two processes share one model and answer as one does."""

from pathlib import Path

import psutil
import pytest

from tests.support.engine_server import running
from tests.support.tiny_models import write_model

pytestmark = pytest.mark.integration
PROMPTS = [[5, 6, 7] * 30, [9] * 17, list(range(3, 60))]


def answers(folder: Path, processes: int) -> list[str]:
    with running(folder, "--kv-cache-bytes", "4MiB", "--tensor-parallel-size", str(processes)) as server:
        found = []
        for prompt in PROMPTS:
            body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
            status, reply = server.post("/v1/completions", body)
            assert status == 200, reply
            found.append(reply["choices"][0]["token_ids"])
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) == processes
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive, "processes outlive the server"
    return found


def test_two_processes_answer_as_one_does(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False})
    assert answers(folder, 2) == answers(folder, 1)


def test_a_size_that_does_not_divide_the_model_is_refused(tmp_path: Path) -> None:
    from tests.support.engine_server import EngineServer

    server = EngineServer(write_model(tmp_path / "tiny"), "--tensor-parallel-size", "3")
    try:
        assert server.wait_exit(90) == 1
        assert "--tensor-parallel-size 3 does not divide the model's KV heads (2)" in "\n".join(server.lines)
    finally:
        server.kill()
