"""One process's link to Redis: a client whose every call has a deadline, and a heartbeat that says how it fares.

The heartbeat runs on a connection of its own, four times a second, so a busy pool never looks like a dead server. Readers judge
staleness only while the link is *settled*: an echo within the last second, and ten seconds passed since the last reconnect or
the last new server, because until then what is missing in Redis may simply not have been published again yet.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

import redis.asyncio as aioredis

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """Where Redis is. ``url`` is ``redis://``, ``rediss://`` or ``unix://``, without credentials.

    ``timeout_s``: deadline of one call, connect included. ``beat_s``: period of the heartbeat. ``echo_s``: an echo older than
    this means unhealthy. ``settle_s``: how long after a reconnect or a new server nothing is judged stale.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout_s: float = 1.0
    beat_s: float = 0.25
    echo_s: float = 1.0
    settle_s: float = 10.0


class RedisLink:
    """Async context manager. ``client`` takes and gives bytes; ``run_id`` is the server's, empty while unknown.

    ``generation`` counts connects and changes of ``run_id``; whoever keeps state that a restarted server may have lost
    compares it.
    """

    run_id: str = ""
    generation: int = 0

    def __init__(self, config: RedisConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self._clock = clock

    @property
    def client(self) -> aioredis.Redis:
        """Raises nothing; bytes in, bytes out; every call bounded by ``timeout_s``."""
        raise NotImplementedError

    @property
    def healthy(self) -> bool:
        """An echo came within the last second."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Healthy, and at least ten seconds since the last connect or changed ``run_id``."""
        raise NotImplementedError

    async def ask(self, call: Awaitable[T]) -> T:
        """Await one call of ``client`` within the deadline; raises `RedisUnavailable`."""
        raise NotImplementedError

    async def wait_healthy(self, deadline_s: float) -> bool:
        """Wait for the first echo; False when none came in time."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError
