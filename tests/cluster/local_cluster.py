"""The cluster of local/kubernetes, and this process inside its network."""

import ctypes
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube import CACHE, ROOT, run

SCRIPTS = ROOT / "local" / "kubernetes"
CLONE_NEWNET = 0x40000000
# The network that this process began in, held open: builds need it.
OUTSIDE = f"/proc/{os.getpid()}/fd/{os.open('/proc/self/ns/net', os.O_RDONLY)}"


@dataclass(frozen=True)
class LocalCluster:
    data: Path

    @property
    def kubeconfig(self) -> Path:
        return self.data / "kubeconfig"

    @property
    def nodes(self) -> list[int]:
        return sorted(int(folder.name.removeprefix("node-")) for folder in self.data.glob("node-*"))

    @property
    def env(self) -> dict[str, str]:
        return {"RH_CLUSTER": str(self.data), "RH_CACHE": str(CACHE)}

    def script(self, name: str, *args: str | Path, timeout: float = 120, **env: str) -> str:
        return run(SCRIPTS / name, *args, env={**self.env, **env}, timeout=timeout)

    def enter(self, *command: str, node: int = 1) -> str:
        """Run a command in a node: it sees that node's files and processes."""
        return self.script("enter.sh", *command, NODE=str(node))

    def load(self, images: Iterable[str]) -> None:
        """Bring built images into every node."""
        self.script("import.sh", *images, timeout=300)

    def join_network(self) -> None:
        """Move this process into the first node's network: API, pods and Services are reachable, nothing else is.

        For good, and for every process and thread that it starts from here on. Nothing else of it changes.
        """
        pid = int((self.data / "pid").read_text())
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the cluster's network")
        os.close(namespace)


def build_images(*names: str) -> dict[str, float]:
    """Builds our images from this working tree; without names, all but the engine's. Their sizes in MB."""
    lines = run("nsenter", f"--net={OUTSIDE}", SCRIPTS / "images.sh", *names, timeout=1800).splitlines()
    fields = [line.split() for line in lines]
    return {
        ref.rpartition("roundhouse-")[2].partition(":")[0]: float(size) * {"MB": 1, "GB": 1000}[unit]
        for ref, size, unit in fields
    }


@contextmanager
def running(data: Path, *, nodes: int = 1, gpus: int = 2, control_args: str = "") -> Iterator[LocalCluster]:
    cluster = LocalCluster(data)
    run(SCRIPTS / "build.sh", timeout=3600)
    cluster.script("up.sh", NODES=str(nodes), GPUS=str(gpus), CONTROL_ARGS=control_args)
    try:
        yield cluster
    finally:
        cluster.script("down.sh")
        for images in data.glob("node-*/var/lib"):  # gigabytes; the logs stay
            shutil.rmtree(images)
