"""What the kubelet knows of each container, and how long a stop may take."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from roundhouse_operator.cluster import Obj

Role = Literal["init", "sidecar", "main"]


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """Times are Unix seconds."""

    started_at: float


@dataclass(frozen=True, slots=True)
class Terminated:
    exit_code: int
    reason: str
    started_at: float
    finished_at: float
    message: str = ""
    signal: int = 0
    container_id: str = ""


State = Waiting | Running | Terminated


@dataclass(slots=True)
class ContainerRecord:
    """``started``: the startup probe, if any, has succeeded. ``container_id``: ``process://<pid>``."""

    spec: Obj
    role: Role
    state: State = field(default_factory=lambda: Waiting("PodInitializing"))
    last: Terminated | None = None
    restarts: int = 0
    started: bool = False
    ready: bool = False
    container_id: str = ""

    @property
    def name(self) -> str:
        name: str = self.spec["name"]
        return name

    @property
    def done(self) -> bool:
        """Ran to success."""
        return isinstance(self.state, Terminated) and self.state.exit_code == 0


def role_of(container: Obj, *, init: bool) -> Role:
    if not init:
        return "main"
    return "sidecar" if container.get("restartPolicy") == "Always" else "init"


class Grace:
    """Time that is left for a stop; a second delete may shorten it while things are waiting on it."""

    def __init__(self, seconds: float) -> None:
        self._end = asyncio.get_running_loop().time() + seconds
        self._scopes: set[asyncio.Timeout] = set()

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._end - asyncio.get_running_loop().time())

    def shorten(self, seconds: float) -> None:
        self._end = min(self._end, asyncio.get_running_loop().time() + seconds)
        for scope in self._scopes:
            scope.reschedule(self._end)

    @asynccontextmanager
    async def limit(self, at_least_s: float = 0.0) -> AsyncIterator[None]:
        """Raises TimeoutError inside when the grace is over, but not before ``at_least_s``."""
        end = max(self._end, asyncio.get_running_loop().time() + at_least_s)
        async with asyncio.timeout_at(end) as scope:
            if not at_least_s:
                self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
