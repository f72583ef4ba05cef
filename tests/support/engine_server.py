"""The real engine server as a child process."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("operator", "gateway", "kv_index", "engines", "local")
START_SECONDS = 100
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in PACKAGES)}


class EngineServer:
    """Listens on a port of its own choice, read from its log. ``lines`` is what it has written to stderr."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "roundhouse_torch", "--model", str(folder), "--port", "0", "--threads", "1"]
        self.process = subprocess.Popen(
            [*command, *arguments], env=ENVIRONMENT, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.lines: list[str] = []
        self.port = 0
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        assert self._ready.wait(START_SECONDS), "no sign of life"
        assert self.port, "\n".join(self.lines)

    def wait_exit(self, seconds: float = 60) -> int:
        """The exit code, once everything it wrote is read."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def engine_pid(self) -> int:
        """The child that computes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            body: bytes = response.read()
        return body

    def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and decoded body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def metric(self, name: str) -> float:
        """Sum over all label sets."""
        pattern = re.compile(rf"^vllm:{name}(?:{{.*}})? (\S+)$", re.MULTILINE)
        return sum(float(value) for value in pattern.findall(self.get("/metrics").decode()))

    def wait_for_metric(self, name: str, value: float, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while self.metric(name) != value:
            assert time.monotonic() < deadline, f"{name} is {self.metric(name)}, not {value}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            found = re.search(r" ready address=\S+:(\d+) ", line)
            if found:
                self.port = int(found[1])
                self._ready.set()
        self._ready.set()


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[EngineServer]:
    """Ready to answer; killed on leaving."""
    server = EngineServer(folder, *arguments)
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()
