"""One `roundhouse up` for a benchmark, gone afterwards, and a way to its Valkey and its parts."""

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
from typing import Any

from redis import Redis

from benchmarks.harness import PYTHONPATH, ROOT, BenchmarkError, free_port

READY_S = 300.0
COMMAND = (sys.executable, "-m", "roundhouse_local")


@dataclass(frozen=True)
class LocalRun:
    """``ports``: of the two gateways; a gateway's admin port is its port + 1."""

    home: Path
    ports: tuple[int, int]

    def status(self) -> dict[str, Any]:
        """What the run consists of, with the pids."""
        argv = [*COMMAND, "status", "--home", str(self.home)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, env=environment(), check=False)
        if done.returncode:
            raise BenchmarkError(f"`roundhouse status` failed: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def valkey(self) -> Redis:
        """With the password that the run made up for itself, as its gateways got it."""
        status = self.status()
        given = Path(f"/proc/{status['gateways'][0]['pid']}/environ").read_bytes().split(b"\0")
        password = next(each.partition(b"=")[2] for each in given if each.startswith(b"RH_REDIS_PASSWORD="))
        return Redis.from_url(status["valkey"]["url"], password=password.decode())


def environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": PYTHONPATH}


@contextmanager
def local_run(manifest: str) -> Iterator[LocalRun]:
    """``manifest``'s services ready behind two gateways."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="rh-bench-") as folder:
        home = Path(folder)
        file, log = home / "service.yaml", home / "up.log"
        file.write_text(manifest)
        argv = [*COMMAND, "up", "-f", str(file), "--home", str(home / "run"), "--port", str(port)]
        with log.open("wb") as output:
            process = subprocess.Popen(argv, stdout=output, stderr=output, env=environment(), cwd=ROOT)
        try:
            deadline = time.monotonic() + READY_S
            while "Ready after" not in log.read_text():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BenchmarkError(f"the local run did not get ready:\n{log.read_text()[-2000:]}")
                time.sleep(0.2)
            yield LocalRun(home / "run", (port, port + 100))
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            finally:
                process.kill()
