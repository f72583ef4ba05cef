"""How an engine kind is started: pure functions from settings to a command line. Used by the operator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

from roundhouse_engines.errors import UnknownEngine

ENGINE_KINDS = ("torch", "vllm", "sim")
ENGINE_PORT = 8000
AGENT_PORT = 9090


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What the operator knows of the replica to start.

    ``model_path`` is the read-only folder that ``fetch`` fills; ``model_name`` the name the engine answers to;
    ``kv_events`` and ``kv_replay`` are ZMQ ``ipc://`` endpoints to bind. ``host`` may be ``$(POD_IP)``.
    ``args`` and ``env`` are the user's own and come last.
    """

    model_path: str
    model_name: str
    host: str
    port: int
    kv_events: str
    kv_replay: str
    gpus: int
    drain_seconds: int
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One container: ``argv`` is exec'ed after the start nonce is written. ``health_path`` answers 200 when alive.

    ``shutdown_seconds``: what the engine itself needs to stop after SIGTERM once it is drained.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    health_path: str
    shutdown_seconds: int
    needs_model: bool = True


class Launch(Protocol):
    """The ``launch`` module of one engine kind."""

    kind: str
    image: str

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """Raises `BadEngineSpec` for settings that this engine cannot be started with."""
        ...


def load_launch(kind: str) -> Launch:
    """Raises `UnknownEngine`."""
    if kind not in ENGINE_KINDS:
        raise UnknownEngine(f"engine {kind!r} is not one of {', '.join(ENGINE_KINDS)}")
    launch: Launch = import_module(f"roundhouse_engines.{kind}.launch").LAUNCH
    return launch
