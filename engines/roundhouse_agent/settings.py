"""Settings of both processes, read once from the environment that the operator gives (docs/contracts.md §1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as setting
from pathlib import Path
from uuid import UUID

from roundhouse_engines.launch import AGENT_PORT, ENGINE_KINDS, ENGINE_PORT
from roundhouse_kv.redis_config import RedisConfig

from roundhouse_agent.errors import BadSettings

HUNG_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Where the model comes from and goes to. ``progress_url`` empty: nobody is told of the progress."""

    model: str
    cache: Path
    path: Path
    progress_url: str = ""
    token: str | None = setting(default=None, repr=False)

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


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """One replica's agent.

    ``model_path`` None: the engine brings its own model. ``engine_model``: the name that the engine answers to.
    ``drain_seconds``: deadline of a drain that names none. ``hung_seconds``: an engine with running requests that gives
    neither a token nor a KV event for so long is reported as hung; a long prefill shows by its KV events.
    """

    installation: str
    namespace: str
    service: str
    replica: str
    replica_uid: str
    pod_uid: str
    pod_ip: str
    run_dir: Path
    engine: str
    engine_model: str
    model_path: Path | None
    redis: RedisConfig
    gpu_type: str = ""
    drain_seconds: float = 60.0
    hung_seconds: float = HUNG_SECONDS
    port: int = AGENT_PORT
    engine_port: int = ENGINE_PORT

    @property
    def kv_events(self) -> str:
        return f"ipc://{self.run_dir}/kv-events.sock"

    @property
    def kv_replay(self) -> str:
        return f"ipc://{self.run_dir}/kv-replay.sock"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "ServeSettings":
        """Raises `BadSettings` naming the variable."""
        engine, pod_uid = _required(env, "RH_ENGINE"), _required(env, "POD_UID")
        if engine not in ENGINE_KINDS:
            raise BadSettings(f"RH_ENGINE={engine} is not one of {', '.join(ENGINE_KINDS)}")
        try:
            UUID(pod_uid)
        except ValueError as error:
            raise BadSettings(f"POD_UID={pod_uid} is no UUID") from error
        return cls(
            installation=_required(env, "RH_INSTALLATION"),
            namespace=_required(env, "RH_NAMESPACE"),
            service=_required(env, "RH_SERVICE"),
            replica=_required(env, "RH_REPLICA"),
            replica_uid=_required(env, "RH_REPLICA_UID"),
            pod_uid=pod_uid,
            pod_ip=_required(env, "POD_IP"),
            run_dir=Path(_required(env, "RUN_DIR")),
            engine=engine,
            engine_model=_required(env, "RH_ENGINE_MODEL"),
            model_path=Path(env["RH_MODEL_PATH"]) if env.get("RH_MODEL_PATH") else None,
            redis=RedisConfig(
                _required(env, "RH_REDIS_URL"),
                env.get("RH_REDIS_USERNAME") or None,
                env.get("RH_REDIS_PASSWORD") or None,
            ),
            gpu_type=env.get("RH_GPU_TYPE", ""),
            drain_seconds=_seconds(env, "RH_DRAIN_SECONDS", 60.0),
            hung_seconds=_seconds(env, "RH_HUNG_SECONDS", HUNG_SECONDS),
        )


def _required(env: Mapping[str, str], name: str) -> str:
    if not (value := env.get(name)):
        raise BadSettings(f"environment variable {name} is not set")
    return value


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(env.get(name) or default)
    except ValueError as error:
        raise BadSettings(f"{name}={env[name]} is not a number of seconds") from error
    if value < 0:
        raise BadSettings(f"{name}={env[name]} is negative")
    return value
