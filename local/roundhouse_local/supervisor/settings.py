"""Settings of one local run, parsed once from flags and environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roundhouse_local.kubelet import ROUNDHOUSE_IMAGES, BackoffRule, Image

PORT_STEP = 100
"""Between the ports of two gateways; a gateway's admin port is its own + 1."""


@dataclass(frozen=True, slots=True)
class UpSettings:
    """What `roundhouse up` works with."""

    home: Path
    """Folder of this run: control socket, logs, pods' folders. One run at a time may have it."""
    models: Path
    """Folder that downloaded models are kept in, shared by all runs."""
    host: str = "127.0.0.1"
    """Address that the gateways listen on."""
    port: int = 8080
    """Port of the first gateway; each further one adds 100."""
    gateways: int = 2
    """Number of gateway processes."""
    api_keys: Path | None = None
    """Folder of hashed API keys; None: everyone is served."""
    gpus: int = 0
    """GPUs that the local node offers. Services that name no number get none."""
    gpu_type: str = ""
    """GPU product of the node, compared with resources.gpuType."""
    stop_s: float = 10.0
    """Seconds that replicas get to finish their requests when the run is stopped."""
    images: Mapping[str, Image] = field(default_factory=lambda: dict(ROUNDHOUSE_IMAGES))
    """Programs that container images stand for."""
    backoff: BackoffRule = field(default_factory=lambda: BackoffRule(initial_s=1.0, limit_s=60.0, reset_s=60.0))
    """Restart back-off of containers; a cluster begins with 10 s."""

    def gateway_ports(self) -> list[int]:
        return [self.port + PORT_STEP * place for place in range(self.gateways)]

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("", "0.0.0.0") else self.host
        return f"http://{host}:{self.port}"


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or "~").expanduser() / ".cache") / "roundhouse"


def home_folder(given: str | None, env: Mapping[str, str] = os.environ) -> Path:
    """``--home``, else $ROUNDHOUSE_HOME, else ``~/.cache/roundhouse/local``."""
    return Path(given or env.get("ROUNDHOUSE_HOME") or cache_folder(env) / "local").absolute()
