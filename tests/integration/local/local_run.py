"""`roundhouse up` as a process, for tests, and what a user would do beside it."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from roundhouse_local.supervisor.requests import ask

REPOSITORY = Path(__file__).parents[3]
PACKAGES = os.pathsep.join(str(REPOSITORY / name) for name in ("operator", "gateway", "kv_index", "engines", "local"))
START_S, STOP_S = 60.0, 40.0

SIM = """\
apiVersion: roundhouse.dev/v1alpha1
kind: InferenceService
metadata: {name: demo}
spec:
  engine: {name: sim, args: [--step-seconds=0.05]}
  replicas: 2
  drain: {timeoutSeconds: 5}
"""


def own_address() -> str:
    """A loopback address that nobody else is likely to have, so that the default ports are free on it."""
    return f"127.{random.randint(208, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}"


@dataclass
class LocalRun:
    """``output`` is what `up` has printed so far."""

    home: Path
    address: str
    process: "subprocess.Popen[bytes]"
    family: list[psutil.Process] = field(default_factory=list)

    @property
    def output(self) -> str:
        return (self.home / "output").read_text()

    @property
    def urls(self) -> list[str]:
        return [f"http://{self.address}:{port}" for port in (8080, 8180)]

    @property
    def admins(self) -> list[str]:
        return [f"http://{self.address}:{port}" for port in (8081, 8181)]

    def ask(self, **request: Any) -> Any:
        return ask(self.home / "control.sock", self.home, **request)

    def objects(self, kind: str, namespace: str = "default") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask(verb="get", kind=kind, namespace=namespace)["objects"]
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(verb="status")
        return found

    def ready_replicas(self, name: str = "demo") -> int:
        service = next(s for s in self.objects("infsvc") if s["metadata"]["name"] == name)
        ready: int = service.get("status", {}).get("readyReplicas", 0)
        return ready

    def engine_pid(self, replica: str) -> int:
        """Of the process that serves, found by its address."""
        pod = next(pod for pod in self.objects("pods") if pod["metadata"]["name"] == replica)
        status = next(s for s in pod["status"]["containerStatuses"] if s["name"] == "engine")
        return int(status["containerID"].removeprefix("process://"))

    def cli(self, *arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
        return run_cli(*arguments, home=self.home, text=text)

    def remember_family(self) -> None:
        """Every process below `up`, to see later that none of them is left."""
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def left(self) -> list[psutil.Process]:
        return [p for p in self.family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def wait(self) -> int:
        return self.process.wait(STOP_S)


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "PATH", "HOME"))}
    return {**kept, "PYTHONPATH": PACKAGES, "ROUNDHOUSE_HOME": str(home), "COLUMNS": "200"}


def run_cli(*arguments: str, home: Path, text: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "roundhouse_local", *arguments]
    return subprocess.run(
        command, env=environment(home), input=text, capture_output=True, text=True, timeout=START_S, check=False
    )


@contextmanager
def local_run(home: Path, manifest: str, *flags: str, wait_for: str = "Ready after") -> Iterator[LocalRun]:
    """Up and ready; stopped at the end however the test went."""
    (home / "service.yaml").write_text(manifest)
    address = own_address()
    command = [sys.executable, "-m", "roundhouse_local", "up", "-f", str(home / "service.yaml"), "--host", address]
    with (home / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--models", str(home / "models"), *flags],
            env=environment(home), stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    run = LocalRun(home, address, process)
    try:
        wait_until(lambda: wait_for in run.output or process.poll() is not None, lambda: run.output)
        assert wait_for in run.output, run.output
        run.remember_family()
        yield run
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until(look: Any, what: Any = "", deadline_s: float = START_S) -> Any:
    """Poll until ``look`` gives something true; ``what`` (perhaps a call) says what was missing."""
    end = time.monotonic() + deadline_s
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what() if callable(what) else what}")
        time.sleep(0.05)
    return found


async def wait_for(look: Any, what: Any = "", deadline_s: float = START_S) -> Any:
    return await asyncio.to_thread(wait_until, look, what, deadline_s)


@dataclass
class Stream:
    """One streamed answer as a client saw it."""

    replica: str = ""
    events: list[str] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False

    @property
    def done(self) -> bool:
        return bool(self.events) and self.events[-1] == "[DONE]"

    @property
    def failed(self) -> bool:
        """Ended with an error event and without ``[DONE]``."""
        return bool(self.events) and "[DONE]" not in self.events and "error" in json.loads(self.events[-1])
