"""The load client, the cheap backend and the accounting of CPU, as processes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gateway import __main__ as gateway
from benchmarks.harness import BenchmarkError, compile_c, cpu_seconds, descendants, free_port, running, wait_for_http

pytestmark = pytest.mark.integration

HERE = Path(gateway.__file__).parent
BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ninput()"


def load(port: int, *, stream: bool, body: int = 400) -> dict[str, object]:
    argv = [compile_c(HERE / "client.c"), port, 4, 0.3, int(stream), body, 8, "m"]
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=30, check=True)
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_client_and_backend_understand_each_other() -> None:
    port = free_port()
    with running("backend", [compile_c(HERE / "backend.c"), str(port), "16", "1000", "500"]) as child:
        wait_for_http(f"http://127.0.0.1:{port}/health", child)
        for body in (400, 32 * 1024):
            small = load(port, stream=False, body=body)
            assert (small["broken"], small["refused"], small["unfinished"], small["events"]) == (0, 0, 0, 0)
            assert small["requests"] != 0
        streams = load(port, stream=True)
        assert (streams["broken"], streams["refused"], streams["unfinished"]) == (0, 0, 0)
        assert streams["events"] == int(str(streams["requests"])) * 16


def test_the_client_counts_what_is_refused_and_broken() -> None:
    environment = {**os.environ, "PYTHONPATH": "engines"}
    options = ["--port", "0", "--fault", "status,count=-1,status=503"]
    argv = [sys.executable, "-m", "roundhouse_sim", *options]
    with subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True) as sim:
        assert sim.stderr is not None
        port = int(sim.stderr.readline().partition("port=")[2].split()[0])
        result = load(port, stream=False)
        sim.kill()
    assert result["refused"] == result["requests"] != 0


def test_cpu_of_children_counts() -> None:
    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as parent:
        used = 0.0
        while used < 0.3:
            assert parent.poll() is None
            used = cpu_seconds(parent.pid)
        assert len(descendants(parent.pid)) == 2
        parent.communicate(b"\n")


def test_nothing_is_left_running() -> None:
    script = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'input()'])\ntime.sleep(60)"
    with running("family", [sys.executable, "-c", script]) as child:
        while len(family := descendants(child.pid)) < 2:
            child.fail_if_ended()
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in family):
        assert time.monotonic() < deadline


def test_a_child_that_ends_early_is_reported_with_its_last_words() -> None:
    with running("short", [sys.executable, "-c", "raise SystemExit('out of luck')"]) as child:
        child.process.wait(10)
        with pytest.raises(BenchmarkError, match="out of luck"):
            wait_for_http("http://127.0.0.1:9/", child)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
