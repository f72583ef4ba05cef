"""CPU per request and per streamed event: our gateway and nginx, side by side.

Each proxy runs alone on one core; two C backends and the C client share another. Per round each proxy gets the same
three loads in turn: small requests (400 B), chat bodies of 32 KB, and 64 streams whose events come 10 ms apart. CPU is
that of the proxy's whole process tree, user and kernel, divided by what the client received. The least of all rounds is
reported: noise of other processes only ever adds.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from benchmarks.gateway.nginx import find_nginx, nginx_version, write_config
from benchmarks.harness import (
    BenchmarkError,
    Child,
    compile_c,
    free_port,
    idle_share,
    print_result,
    quick,
    running,
    wait_for_http,
)
from benchmarks.live_state import INSTALLATION, LiveState, kept, valkey

HERE = Path(__file__).parent
MODEL = "m"
CONNECTIONS = 64
BODIES = 64
EVENTS, INTERVAL_US, FIRST_US = 64, 10_000, 5_000


class Load(msgspec.Struct, frozen=True):
    """What the client reports."""

    requests: int
    events: int
    broken: int
    refused: int
    unfinished: int
    latency_us: tuple[float, float]
    event_delay_us: tuple[float, float]


@dataclass(frozen=True)
class Scenario:
    figure: str
    stream: bool
    body_bytes: int

    def count(self, load: Load) -> int:
        return load.events if self.stream else load.requests


SCENARIOS = (
    Scenario("small_request_cpu_us", False, 400),
    Scenario("request_32k_cpu_us", False, 32 * 1024),
    Scenario("event_cpu_us", True, 400),
)


@dataclass(frozen=True)
class Cores:
    """Where proxies and everything else run; the same core when there is only one."""

    proxy: int
    rest: int


@dataclass(frozen=True)
class Proxy:
    name: str
    child: Child
    port: int


def main() -> int:
    try:
        figures, versions = measure()
    except BenchmarkError as error:
        print(f"bench-gateway: {error}", file=sys.stderr)
        return 1
    print_result("gateway", versions, figures)
    return 0


def measure() -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    allowed = sorted(os.sched_getaffinity(0))
    cores = Cores(allowed[0], allowed[-1])
    nginx = find_nginx()
    client = compile_c(HERE / "client.c")
    rounds, seconds = (2, 2.0) if quick() else (5, 4.0)
    best: dict[str, dict[str, float]] = {scenario.figure: {} for scenario in SCENARIOS}
    with ExitStack() as stack:
        backends = [stack.enter_context(backend(cores)) for _ in range(2)]
        proxies = [
            stack.enter_context(roundhouse(backends, cores)),
            stack.enter_context(nginx_proxy(nginx, backends, cores)),
        ]
        run = loader(client, cores)
        for proxy in proxies:
            for scenario in SCENARIOS:
                run(proxy, scenario, 0.5)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}, {idle_share():.0%} of the machine idle", flush=True)
            for scenario in SCENARIOS:
                for proxy in proxies:
                    used = run(proxy, scenario, seconds)
                    best[scenario.figure][proxy.name] = min(used, best[scenario.figure].get(proxy.name, used))
    figures = {figure: {name: round(value, 1) for name, value in values.items()} for figure, values in best.items()}
    return figures, {"nginx": nginx_version(nginx), "uvloop": version("uvloop"), "httptools": version("httptools")}


def loader(client: Path, cores: Cores) -> Callable[[Proxy, Scenario, float], float]:
    """A function that puts one load on one proxy and returns its CPU microseconds per request or event."""

    def run(proxy: Proxy, scenario: Scenario, seconds: float) -> float:
        argv = [client, proxy.port, CONNECTIONS, seconds, int(scenario.stream), scenario.body_bytes, BODIES, MODEL]
        before = proxy.child.cpu_seconds()
        pinned = ["taskset", "-c", str(cores.rest), *map(str, argv)]
        done = subprocess.run(pinned, capture_output=True, text=True, timeout=seconds + 60, check=False)
        used = proxy.child.cpu_seconds() - before
        proxy.child.fail_if_ended()
        if done.returncode:
            raise BenchmarkError(f"the client failed against {proxy.name}: {done.stderr}")
        load = msgspec.json.decode(done.stdout, type=Load)
        if load.broken or load.refused or load.unfinished:
            raise BenchmarkError(f"{proxy.name}, {scenario.figure}: void, {done.stdout.strip()}\n{done.stderr}")
        each = used / scenario.count(load) * 1e6
        spread = load.event_delay_us if scenario.stream else load.latency_us
        print(
            f"  {scenario.figure:22} {proxy.name:11} {each:7.1f} us, {scenario.count(load) / seconds:8.0f}/s, "
            f"p50 {spread[0]:.0f} us, p99 {spread[1]:.0f} us",
            flush=True,
        )
        return each

    return run


@contextmanager
def backend(cores: Cores) -> Iterator[int]:
    """A C backend; its port."""
    port = free_port()
    argv: list[str | Path] = [compile_c(HERE / "backend.c"), str(port), str(EVENTS), str(INTERVAL_US), str(FIRST_US)]
    with running(f"backend-{port}", argv, core=cores.rest) as child:
        wait_for_http(f"http://127.0.0.1:{port}/health", child)
        yield port


@contextmanager
def nginx_proxy(program: Path, backends: Sequence[int], cores: Cores) -> Iterator[Proxy]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-nginx-") as folder:
        config = write_config(Path(folder), port, backends, root=os.geteuid() == 0)
        argv: list[str | Path] = [program, "-p", folder, "-e", f"{folder}/error.log", "-c", config]
        with running("nginx", argv, core=cores.proxy) as child:
            wait_for_http(f"http://127.0.0.1:{port}/health", child)
            yield Proxy("nginx", child, port)


@contextmanager
def roundhouse(backends: Sequence[int], cores: Cores) -> Iterator[Proxy]:
    """Our gateway with the backends as replicas of one service, as an operator and agents would describe them."""
    port, admin = free_port(), free_port()
    addresses = [("127.0.0.1", backend) for backend in backends]
    with valkey(cores.rest) as url, kept(LiveState(url, MODEL, addresses)):
        argv = [sys.executable, "-m", "roundhouse_gateway", "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--admin-port", str(admin), "--installation", INSTALLATION.name, "--redis-url", url]
        with running("gateway", argv, core=cores.proxy) as child:
            wait_for_http(f"http://127.0.0.1:{admin}/readyz", child)
            yield Proxy("roundhouse", child, port)


if __name__ == "__main__":
    sys.exit(main())
