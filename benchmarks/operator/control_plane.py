"""A real control plane without nodes, the operator on it, and the API server's own count of the operator's writes."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT, BenchmarkError, Child, free_port, running, wait_for_http

START_S = 60.0
INSTALLATION = "bench/bench"

_COUNT = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
Wanted = Callable[[str, str, str], bool]
"""Of resource, subresource and group."""

_WRITES = {"POST", "PUT", "PATCH", "APPLY", "DELETE"}
# What only the operator writes: pods' statuses, for one, are the node's, and a budget's is its controller's.
_OPERATORS = {
    ("enginereplicas", ""), ("enginereplicas", "status"), ("inferenceservices", "status"), ("pods", ""),
    ("secrets", ""), ("poddisruptionbudgets", ""), ("networkpolicies", ""),
}  # fmt: skip


@dataclass(frozen=True)
class ControlPlane:
    kubectl: Path
    kubeconfig: Path

    def ask(self, *words: str) -> str:
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.kubeconfig.parent)}
        done = subprocess.run([self.kubectl, *words], env=env, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise BenchmarkError(f"kubectl {' '.join(words)[:100]}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def writes(self) -> dict[str, float]:
        """The operator's so far, Events and the Lease aside, by what was written."""
        return self._counted(lambda resource, sub, _: (resource, sub) in _OPERATORS)

    def events(self) -> float:
        return sum(self._counted(lambda resource, _, group: resource == "events" and group == "").values())

    def _counted(self, wanted: Wanted) -> dict[str, float]:
        found: dict[str, float] = {}
        for labels, value in _COUNT.findall(self.ask("get", "--raw", "/metrics")):
            of = dict(_LABEL.findall(labels))
            if of["verb"] in _WRITES and wanted(of["resource"], of["subresource"], of["group"]):
                name = f"{of['verb']} {of['resource']}{'/' if of['subresource'] else ''}{of['subresource']}"
                found[name] = found.get(name, 0) + float(value)
        return found


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """Etcd, API server, controller manager and scheduler of local/kubernetes, with our definitions."""
    built = subprocess.run([ROOT / "local/kubernetes/build.sh"], capture_output=True, text=True)
    if built.returncode != 0:
        raise BenchmarkError(f"no control plane could be built: {built.stderr.strip()[-500:]}; see make kubernetes")
    folder = Path(built.stdout.strip())
    with tempfile.TemporaryDirectory(prefix="bench-operator-") as data:
        plane = ControlPlane(folder / "kubectl", Path(data, "kubeconfig"))
        argv: list[str | Path] = [folder / "devcluster", "up", "--data", data, "--port", str(free_port())]
        # Here it shares the processors with the operator; less garbage collection leaves more of them.
        with running("control-plane", argv, env={"GOGC": "400"}) as child:
            _wait(plane, child)
            plane.ask("apply", "--server-side", "--filename", str(ROOT / "crds"))
            plane.ask("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
            yield plane


@contextmanager
def operator(plane: ControlPlane, redis_url: str) -> Iterator[Child]:
    """As the chart starts it."""
    port = free_port()
    argv = [sys.executable, "-m", "roundhouse_operator", "--installation", INSTALLATION, "--redis-url", redis_url]
    argv += ["--port", str(port), "--redis-acl", "--network-policies", "--log-level", "WARNING"]
    env = {"KUBECONFIG": str(plane.kubeconfig), "POD_NAMESPACE": "default", "POD_NAME": "bench"}
    with running("operator", argv, env=env) as child:
        wait_for_http(f"http://127.0.0.1:{port}/healthz", child)
        yield child


def _wait(plane: ControlPlane, child: Child) -> None:
    end = time.monotonic() + START_S
    while True:
        child.fail_if_ended()
        try:
            plane.ask("get", "namespace", "default")
            return
        except BenchmarkError:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def peak_rss_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6
