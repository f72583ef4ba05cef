"""One process's link to Redis: a client whose every call has a deadline, and a heartbeat that says how it fares.

The heartbeat runs on a connection of its own, four times a second, so a busy pool never looks like a dead server.
Readers judge staleness only while the link is *settled*: an echo within the last second, and ten seconds passed since
the last reconnect or the last new server, because until then what is missing in Redis may simply not have been
published again yet. A server that accepts connections and never answers is the same as one that is away.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError

from roundhouse_kv.errors import RedisUnavailable, Refused
from roundhouse_kv.redis_config import RedisConfig
from roundhouse_kv.resp_connection import KeptConnection

log = logging.getLogger(__name__)

_RUN_ID: Final = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class RedisLink:
    """Async context manager; entering it never waits for Redis.

    ``client`` takes and gives bytes; `ask` bounds its calls. ``bare`` is for what comes round each second, at a tenth
    of the client's cost. ``run_id`` is the server's, empty while unknown.
    ``generation`` counts connects and changes of ``run_id``: whoever keeps state that a restarted server may have
    lost compares it.
    """

    def __init__(self, config: RedisConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.run_id = ""
        self.generation = 0
        self._clock = clock
        self._connected = False
        self._echo_at: float | None = None
        self._settles_at = 0.0
        self._first_echo = asyncio.Event()
        self._beat: asyncio.Task[None] | None = None
        self.client = self._open_client()
        self.bare = self.open_bare()
        self._pulse = self.open_bare()

    def _open_client(self) -> aioredis.Redis:
        """Its only time-out is `ask`: with one of redis-py's, each write goes through ``asyncio.wait_for``, which on
        Python 3.11 forgets a cancellation that comes when the write is just done. A call on a connection that the
        server has closed is sent once more on a new one; all our calls may be executed twice.
        """
        return aioredis.Redis.from_url(
            self.config.url,
            username=self.config.username,
            password=self.config.password,
            socket_timeout=None,
            socket_connect_timeout=self.config.timeout_s,
            retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionLost,)),
            protocol=2,
        )

    def open_bare(self) -> KeptConnection:
        """A bare connection of its own; the caller closes it."""
        return KeptConnection(self.config)

    @property
    def healthy(self) -> bool:
        """An echo came within the last second."""
        return self._echo_at is not None and self._clock() - self._echo_at <= self.config.echo_s

    @property
    def settled(self) -> bool:
        """Healthy, and at least ten seconds since the last connect or changed ``run_id``."""
        return self._connected and self.healthy and self._clock() >= self._settles_at

    async def ask(self, call: Any, *, deadline_s: float | None = None) -> Any:
        """Await one call of a client within the deadline (default ``timeout_s``); raises `RedisUnavailable`.

        A cancellation that a library swallowed on the way is raised again.
        """
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout(self.config.timeout_s if deadline_s is None else deadline_s):
                answer = await call
        except (RedisError, OSError, TimeoutError) as error:
            raise RedisUnavailable(f"Redis at {self.config.url}: {str(error) or type(error).__name__}") from error
        if task is not None and task.cancelling() > cancelled:
            raise asyncio.CancelledError
        return answer

    async def wait_healthy(self, deadline_s: float) -> bool:
        """Wait for the first echo; False when none came in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._first_echo.wait()
        return self.healthy

    async def __aenter__(self) -> Self:
        self._beat = asyncio.create_task(self._beat_forever(), name="redis heartbeat")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)
        for connection in (self._pulse, self.bare):
            connection.close()
        await _close_client(self.client, self.config.timeout_s)

    async def _beat_forever(self) -> None:
        while True:
            try:
                self._heard(await self._echo())
            except RedisUnavailable as error:
                self._lost(error)
            await asyncio.sleep(self.config.beat_s)

    async def _echo(self) -> str:
        """One PING; the server's run_id, or "" when this user may not ask for it."""
        await self._pulse.ask(("PING",))
        with suppress(Refused):
            [info] = await self._pulse.ask(("INFO", "server"))
            told = _RUN_ID.search(info)
            return told[1].decode() if told else ""
        return ""

    def _heard(self, run_id: str) -> None:
        now = self._clock()
        missed = self._echo_at is None or now - self._echo_at > self.config.echo_s
        if not self._connected or run_id != self.run_id:
            self.generation += 1
            log.info("redis_connected", extra={"run_id": run_id, "generation": self.generation})
        if missed or not self._connected or run_id != self.run_id:
            self._settles_at = now + self.config.settle_s
        self._connected, self.run_id, self._echo_at = True, run_id, now
        self._first_echo.set()

    def _lost(self, error: RedisUnavailable) -> None:
        if self._connected:
            log.warning("redis_lost", extra={"error": str(error)})
        self._connected = False


async def _close_client(client: aioredis.Redis, deadline_s: float) -> None:
    """Close without ever hanging on a server that does not answer."""
    with suppress(RedisError, OSError, TimeoutError):
        async with asyncio.timeout(deadline_s):
            await client.aclose()
