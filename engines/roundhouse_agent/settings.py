"""Settings of both processes, read once from the environment that the operator gives (docs/contracts.md §1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roundhouse_engines.launch import AGENT_PORT

from roundhouse_agent.errors import BadSettings


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Where the model comes from and goes to. ``progress_url`` empty: nobody is told of the progress."""

    model: str
    cache: Path
    path: Path
    progress_url: str = ""
    token: str | None = field(default=None, repr=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "FetchSettings | None":
        """None when the engine needs no model. Raises `BadSettings`."""
        if not env.get("RH_MODEL_PATH"):
            return None
        cache, path = Path(_required(env, "RH_MODEL_CACHE")), Path(env["RH_MODEL_PATH"])
        if not path.is_relative_to(cache) or path == cache:
            raise BadSettings(f"RH_MODEL_PATH={path} is not a folder inside RH_MODEL_CACHE={cache}")
        pod_ip = env.get("POD_IP", "")
        host = f"[{pod_ip}]" if ":" in pod_ip else pod_ip
        url = f"http://{host}:{AGENT_PORT}/progress" if pod_ip else ""
        return cls(_required(env, "RH_MODEL"), cache, path, url, env.get("HF_TOKEN") or None)


def _required(env: Mapping[str, str], name: str) -> str:
    if not (value := env.get(name)):
        raise BadSettings(f"environment variable {name} is not set")
    return value
