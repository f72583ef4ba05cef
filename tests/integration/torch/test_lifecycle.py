"""Starting, failing and stopping, each with a process of its own."""

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.engine_server import EngineServer, running
from tests.support.tiny_models import write_model

pytestmark = pytest.mark.integration
SMALL = ("--kv-cache-bytes", "8MiB", "--served-model-name", "tiny")


class Stream(Thread):
    """Reads one streamed completion to its end."""

    def __init__(self, server: EngineServer, tokens: int) -> None:
        super().__init__(daemon=True)
        body = {"prompt": "once upon", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        self._request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode())
        self.data = b""
        self.start()

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=120) as response:
                while chunk := response.read1():
                    self.data += chunk
        except (OSError, urllib.error.URLError) as error:
            self.data += f"cut: {error}".encode()

    def wait_begun(self) -> None:
        deadline = time.monotonic() + 60
        while b"data: " not in self.data:
            assert time.monotonic() < deadline


def refused(arguments: tuple[str, ...], folder: Path) -> str:
    """The last line of a server that does not start."""
    server = EngineServer(folder, *arguments)
    try:
        assert server.wait_exit() == 1
    finally:
        server.kill()
    assert not any("Traceback" in line for line in server.lines)
    return server.lines[-1]


def test_a_model_of_another_family_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {"architectures": ["GPT2LMHeadModel"]})
    assert refused((), folder) == (
        "roundhouse-engine: architecture 'GPT2LMHeadModel' is not supported; supported: LlamaForCausalLM, "
        "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
    )


def test_a_missing_shard_is_the_last_line(tmp_path: Path) -> None:
    folder = write_model(tmp_path, shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "1 of 2 shards are missing" in refused(SMALL, folder)


def test_a_missing_folder_is_the_last_line(tmp_path: Path) -> None:
    assert refused((), tmp_path / "nothing").endswith("nothing does not exist")


def test_a_missing_tokenizer_is_the_last_line(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in refused(SMALL, folder)


def test_a_cache_that_cannot_hold_the_asked_length_is_the_last_line(tiny_folder: Path) -> None:
    line = refused(("--kv-cache-bytes", "64KiB", "--max-model-len", "2048"), tiny_folder)
    assert "--max-model-len 2048 needs a KV cache for 2048 tokens" in line


def test_a_busy_port_is_the_last_line(tiny_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refused(
            ("--port", str(port)), tiny_folder
        )


def test_a_killed_engine_ends_streams_with_an_error_and_the_server_too(tiny_folder: Path) -> None:
    with running(tiny_folder, *SMALL) as server:
        stream = Stream(server, 2000)
        stream.wait_begun()
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert server.wait_exit() == 1
        stream.join(30)
        assert b'data: {"error":{"message":"the engine process ended"' in stream.data
        assert b"[DONE]" not in stream.data
        assert server.lines[-1] == "roundhouse-engine: the engine process was killed by SIGKILL"


def test_a_stopped_engine_is_unhealthy_and_heals(tiny_folder: Path) -> None:
    with running(tiny_folder, *SMALL, "--health-timeout", "2") as server:
        assert server.get("/health") == b""
        os.kill(server.engine_pid(), signal.SIGSTOP)
        wait_for_health(server, 503)
        os.kill(server.engine_pid(), signal.SIGCONT)
        wait_for_health(server, 200)


def wait_for_health(server: EngineServer, status: int) -> None:
    deadline = time.monotonic() + 60
    found = 0
    while found != status:
        assert time.monotonic() < deadline, found
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=30) as response:
                found = response.status
        except urllib.error.HTTPError as error:
            found = error.code
            error.close()


def test_a_killed_server_takes_its_engine_with_it(tiny_folder: Path) -> None:
    with running(tiny_folder, *SMALL) as server:
        engine = Path(f"/proc/{server.engine_pid()}/stat")
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + 30
        while engine.exists() and engine.read_text().rpartition(")")[2].split()[0] not in "ZX":
            assert time.monotonic() < deadline


def test_stopping_at_once_ends_streams_with_abort(tiny_folder: Path) -> None:
    with running(tiny_folder, *SMALL) as server:
        stream = Stream(server, 2000)
        stream.wait_begun()
        server.terminate()
        assert server.wait_exit() == 0
        stream.join(30)
        assert b'"finish_reason":"abort"' in stream.data
        assert stream.data.endswith(b"data: [DONE]\n\n")


def test_draining_finishes_what_runs_and_refuses_what_comes(tiny_folder: Path) -> None:
    with running(tiny_folder, *SMALL, "--shutdown-timeout", "100") as server:
        stream = Stream(server, 1500)
        stream.wait_begun()
        server.terminate()
        status, answer = wait_refused(server)
        assert (status, answer["error"]["code"]) == (503, 503)
        assert server.wait_exit(120) == 0
        stream.join(30)
        assert b'"finish_reason":"length"' in stream.data
        assert b"abort" not in stream.data


def wait_refused(server: EngineServer) -> tuple[int, Any]:
    deadline = time.monotonic() + 60
    while True:
        status, answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        if status != 200:
            return status, answer
        assert time.monotonic() < deadline


def test_a_second_signal_cuts_the_drain_short(tiny_folder: Path) -> None:
    with running(tiny_folder, *SMALL, "--shutdown-timeout", "1000") as server:
        stream = Stream(server, 2000)
        stream.wait_begun()
        server.terminate()
        wait_refused(server)
        server.process.send_signal(signal.SIGINT)
        assert server.wait_exit() == 0
        stream.join(30)
        assert b'"finish_reason":"abort"' in stream.data


def test_a_signal_while_the_model_loads_stops_cleanly(tiny_folder: Path) -> None:
    server = EngineServer(tiny_folder, *SMALL)
    try:
        deadline = time.monotonic() + 60
        while not Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text():
            assert time.monotonic() < deadline
        server.terminate()
        assert server.wait_exit() in (0, -signal.SIGTERM)
    finally:
        server.kill()
