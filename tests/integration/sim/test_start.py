import asyncio
import json
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.integration.sim.conftest import StartSim, launch

pytestmark = pytest.mark.integration


def run(*options: str) -> tuple[int, list[str]]:
    process = launch(*options)
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors.strip().splitlines()


def test_a_failing_start_says_why_in_the_last_line() -> None:
    code, lines = run("--fail-start", "CUDA error: out of memory")
    assert (code, lines[-1]) == (1, "CUDA error: out of memory")


def test_impossible_settings_exit_with_2() -> None:
    code, lines = run("--speedup", "0")
    assert code == 2
    assert "--speedup" in lines[-1]


def test_a_busy_port_is_named(start_sim: StartSim) -> None:
    sim = start_sim()
    code, lines = run("--port", str(sim.port))
    assert code == 1
    assert str(sim.port) in lines[-1]


def test_an_endpoint_that_cannot_be_bound_is_named() -> None:
    code, lines = run("--port", "0", "--kv-events", "ipc:///no/such/folder/events.sock")
    assert code == 1
    assert "/no/such/folder" in lines[-1]


async def test_nothing_listens_while_it_loads() -> None:
    begin = time.monotonic()
    process = launch("--port", "0", "--load-seconds", "1")
    try:
        assert process.stderr is not None
        await asyncio.to_thread(process.stderr.readline)
        assert time.monotonic() - begin >= 1
    finally:
        process.kill()
        process.communicate()


def test_the_models_files_can_be_dumped(tmp_path: Path) -> None:
    assert run("--dump-model", str(tmp_path / "model"))[0] == 0
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    assert tokenizer.encode("hi<|im_end|>").ids == [104, 105, 258]
    assert json.loads((tmp_path / "model" / "config.json").read_text())["num_parameters"] > 0
    assert "<|im_start|>" in (tmp_path / "model" / "chat_template.jinja").read_text()
