"""What every benchmark needs: child processes with their CPU accounted for, compiled C helpers, and the result line.

CPU is the scheduler's own count of nanoseconds (``/proc/<pid>/task/*/schedstat``), user and kernel together, over a
process and all its descendants. Threads and children that end take their count with them, so servers are measured while
they run.
"""

import hashlib
import json
import os
import platform
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "benchmarks"
PYTHONPATH = ":".join(str(ROOT / part) for part in ("operator", "gateway", "kv_index", "engines", "local"))
STOP_SECONDS = 5.0


class BenchmarkError(Exception):
    """The benchmark cannot run here, or its run is void; says what to do."""


def quick() -> bool:
    """``QUICK=1``: at most a minute, same shape of result."""
    return os.environ.get("QUICK", "") not in ("", "0")


def print_result(bench: str, versions: Mapping[str, str], figures: Mapping[str, Mapping[str, float]]) -> None:
    """The one JSON line that ends every benchmark; each figure has a value for each system compared."""
    result = {
        "bench": bench,
        "commit": commit(),
        "versions": {"python": platform.python_version(), **versions},
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "figures": figures,
    }
    print(json.dumps(result), flush=True)


def commit() -> str:
    """Short hash of HEAD, with ``+`` when files differ from it."""
    try:
        head = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
        changed = subprocess.check_output(["git", "status", "--porcelain", "-uno"], cwd=ROOT, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def machine() -> str:
    """Processor, cores and memory in one line."""
    models = (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    memory_kib = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    processor = next(models, "") or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {memory_kib / 2**20:.0f} GiB, Linux {platform.release()}"


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def compile_c(source: Path) -> Path:
    """The program made from ``source``, compiled once per content."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    program = CACHE / f"{source.stem}-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        made = program.with_suffix(f".{os.getpid()}")
        try:
            subprocess.run(["cc", "-O2", "-o", made, source], check=True)
        except FileNotFoundError as error:
            raise BenchmarkError("a C compiler is needed: install gcc or clang so that `cc` is found") from error
        made.rename(program)
    return program


def descendants(pid: int) -> list[int]:
    """``pid`` and everything it started that still runs."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    tree = [pid]
    for member in tree:
        tree += children.get(member, [])
    return tree


def cpu_seconds(pid: int) -> float:
    """CPU that a process tree has used so far."""
    total = 0
    for member in descendants(pid):
        with suppress(OSError):
            for task in os.listdir(f"/proc/{member}/task"):
                with suppress(OSError):
                    total += int(Path(f"/proc/{member}/task/{task}/schedstat").read_text().split()[0])
    return total / 1e9


def idle_share(seconds: float = 0.5) -> float:
    """Share of the machine's CPU that nobody used during ``seconds``."""
    before = _cpu_times()
    time.sleep(seconds)
    spent = [after - earlier for after, earlier in zip(_cpu_times(), before, strict=True)]
    return spent[3] / max(1, sum(spent))


@dataclass(frozen=True)
class Child:
    """A running process with its own process group."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def fail_if_ended(self) -> None:
        if (code := self.process.poll()) is not None:
            raise BenchmarkError(f"{self.name} ended with {code}; its last words:\n{self.log.read_text()[-2000:]}")


@contextmanager
def running(
    name: str, argv: Sequence[str | Path], *, core: int | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Child]:
    """Run a process, on one ``core`` if given; it and its children are gone afterwards."""
    CACHE.mkdir(parents=True, exist_ok=True)
    log = CACHE / f"{name}-{os.getpid()}.log"
    with log.open("wb") as output:
        process = _spawn(argv, core, env, output)
    try:
        yield Child(name, process, log)
    finally:
        _stop(process)
        log.unlink(missing_ok=True)


def wait_for_http(url: str, child: Child, seconds: float = 30.0) -> None:
    """Until ``url`` answers 200."""
    deadline = time.monotonic() + seconds
    while True:
        child.fail_if_ended()
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (OSError, urllib.error.HTTPError) as error:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{child.name}: {url} did not answer 200 within {seconds:g} s: {error}") from error
        time.sleep(0.05)


def _spawn(
    argv: Sequence[str | Path], core: int | None, env: Mapping[str, str] | None, output: IO[bytes]
) -> "subprocess.Popen[bytes]":
    pinned: list[str | Path] = ["taskset", "-c", str(core), *argv] if core is not None else list(argv)
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, **(env or {})}
    options: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True, "cwd": ROOT}
    return subprocess.Popen(pinned, env=environment, **options)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM to the group, SIGKILL to what is left of it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _cpu_times() -> list[int]:
    return [int(value) for value in _lines("/proc/stat")[0].split()[1:9]]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
