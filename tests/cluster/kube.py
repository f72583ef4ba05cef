"""A Kubernetes to test against, by its kubeconfig: kubectl and helm as people use them."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("RH_CACHE") or Path.home() / ".cache" / "roundhouse")
CHART = ROOT / "charts" / "roundhouse"

Obj = dict[str, Any]
T = TypeVar("T")


class CommandFailed(Exception):
    """What a command said when it failed."""


def run(*command: str | Path, stdin: str | None = None, env: dict[str, str] | None = None, timeout: float = 60) -> str:
    words = [str(word) for word in command]
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(words, input=stdin, env=environment, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(words)[:200]}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def eventually(look: Callable[[], T], *, within: float = 30) -> T:
    """The first true result of ``look``; what it raises counts as not yet, until the time is over."""
    end = time.monotonic() + within
    while True:
        try:
            if result := look():
                return result
            problem: Exception | None = None
        except (AssertionError, CommandFailed, LookupError) as failure:
            problem = failure
        if time.monotonic() > end:
            raise AssertionError(f"not within {within} s: {problem or look}") from problem
        time.sleep(0.1)


@dataclass(frozen=True)
class Kube:
    """``chart_options``: what Helm must be told so that this cluster finds its images."""

    kubeconfig: Path
    chart_options: tuple[str, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        tools = CACHE / "tools" / "bin"
        # A discovery cache of its own: clusters that come and go at one address would be taken for one another.
        cache = self.kubeconfig.with_name("kubectl")
        path = f"{tools}:{os.environ['PATH']}"
        return {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(cache), "PATH": path}

    def kubectl(self, *args: str, stdin: str | None = None, timeout: float = 60) -> str:
        return run("kubectl", *args, stdin=stdin, env=self.env, timeout=timeout)

    def helm(self, *args: str, timeout: float = 300) -> str:
        return run("helm", *args, env=self.env, timeout=timeout)

    def get(self, kind: str, name: str = "", *, namespace: str = "default", labels: str = "") -> Any:
        """One object, or the list of those with ``labels``."""
        words = ["get", kind, *([name] if name else ["--selector", labels]), "--namespace", namespace]
        found = json.loads(self.kubectl(*words, "--output", "json"))
        return found if name else found["items"]

    def apply(self, *objects: Obj) -> None:
        self.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all(objects))

    def create(self, obj: Obj) -> None:
        self.kubectl("create", "--filename", "-", stdin=yaml.safe_dump(obj))

    def delete(self, kind: str, name: str, *, namespace: str = "default") -> None:
        self.kubectl("delete", kind, name, "--namespace", namespace, "--wait=false", "--ignore-not-found")

    def condition(self, kind: str, name: str, condition: str, *, namespace: str = "default") -> Obj:
        """Raises `LookupError` while it is not there."""
        conditions = self.get(kind, name, namespace=namespace).get("status", {}).get("conditions", [])
        return next(({**c} for c in conditions if c["type"] == condition), None) or _missing(condition)

    def node_address(self) -> str:
        addresses = self.get("nodes", labels="")[0]["status"]["addresses"]
        return str(next(a["address"] for a in addresses if a["type"] == "InternalIP"))

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """A namespace for as long as the block lasts; its end is not waited for."""
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false")


def _missing(condition: str) -> Obj:
    raise LookupError(f"no condition {condition} yet")
