"""One bare connection to Redis, for what is too frequent for a client library: publishing and listening.

A command leaves at once and nobody waits for it; whatever the server sends goes to a callback, in order. A publish
costs some ten microseconds this way, against a hundred through redis-py, and a gateway makes up to five hundred a
second.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import hiredis
from redis.asyncio.connection import parse_url
from redis.exceptions import RedisError

from roundhouse_kv.errors import RedisUnavailable, Refused
from roundhouse_kv.redis_config import RedisConfig

MOST_UNSENT: Final = 1 << 20

Command = tuple[bytes | str, ...]
Reply = Any
"""int, bytes, None, a list of them, or `hiredis.ReplyError`."""


class RespConnection(asyncio.Protocol):
    """Made by `dial`. ``lost`` is true when the connection has ended."""

    def __init__(self, on_reply: Callable[[Reply], None]) -> None:
        self.lost = False
        self._woken = asyncio.Event()
        self._on_reply = on_reply
        self._reader = hiredis.Reader()
        self._answers: deque[asyncio.Future[Reply]] = deque()
        self._transport: asyncio.Transport | None = None

    @property
    def usable(self) -> bool:
        """Open, and the server takes what is sent."""
        transport = self._transport
        return transport is not None and not self.lost and transport.get_write_buffer_size() < MOST_UNSENT

    def send(self, *command: bytes | str) -> None:
        """Raises nothing: what cannot be sent is lost with the connection."""
        if self._transport is not None:
            self._transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]

    async def ask(self, *command: bytes | str) -> Reply:
        """One command and its answer; see `ask_all`."""
        return (await self.ask_all([command]))[0]

    async def ask_all(self, commands: Sequence[Command]) -> list[Reply]:
        """Commands in one write and their answers; never after something was pushed on this connection. Raises
        `RedisUnavailable`, which is `Refused` when the server answered one with an error."""
        if self._transport is None or self.lost:
            raise RedisUnavailable("connection to Redis lost")
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Reply]] = [loop.create_future() for _ in commands]
        self._answers += answers
        self._transport.write(b"".join(map(hiredis.pack_command, commands)))  # type: ignore[arg-type]
        replies = await asyncio.gather(*answers)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception):
                raise Refused(f"Redis refused {command[0]!r}: {reply}")
        return replies

    async def until_lost(self, most_s: float) -> None:
        """Wait until the connection has ended, or for ``most_s``."""
        timer = asyncio.get_running_loop().call_later(most_s, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        if not self.lost:
            self._woken.clear()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                if self._answers:
                    answer = self._answers.popleft()
                    if not answer.done():
                        answer.set_result(reply)
                else:
                    self._on_reply(reply)
        except hiredis.ProtocolError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._woken.set()
        while self._answers:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_exception(RedisUnavailable(f"connection to Redis lost: {exc or 'closed'}"))


async def dial(config: RedisConfig, on_reply: Callable[[Reply], None]) -> RespConnection:
    """Connect and authenticate within ``timeout_s``. Raises `RedisUnavailable`."""
    connection = RespConnection(on_reply)
    try:
        async with asyncio.timeout(config.timeout_s):
            where = parse_url(config.url)
            await _connect(connection, config.url, where)
            if config.password is not None:
                await connection.ask("AUTH", *([config.username] if config.username else []), config.password)
            if where.get("db"):
                await connection.ask("SELECT", str(where["db"]))
    except (OSError, TimeoutError, RedisError, ValueError) as error:
        connection.close()
        raise RedisUnavailable(f"Redis at {config.url}: {str(error) or type(error).__name__}") from error
    except BaseException:
        connection.close()
        raise
    return connection


async def _connect(connection: RespConnection, url: str, where: Any) -> None:
    loop = asyncio.get_running_loop()
    if "path" in where:
        await loop.create_unix_connection(lambda: connection, where["path"])
        return
    context = ssl.create_default_context() if url.startswith("rediss://") else None
    await loop.create_connection(
        lambda: connection, where.get("host", "localhost"), where.get("port", 6379), ssl=context
    )


class KeptConnection:
    """A connection that is made when it is first used and anew after a failure; it serves one task or many."""

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._connection: RespConnection | None = None
        self._dialling = asyncio.Lock()

    async def ask(self, *commands: Command, deadline_s: float | None = None) -> list[Reply]:
        """Commands in one write and their answers, within the deadline (default ``timeout_s``).

        Raises `RedisUnavailable`, which is `Refused` when the server answered one with an error.
        """
        wait_s = self._config.timeout_s if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(wait_s):
                return await (await self._usable()).ask_all(commands)
        except Refused:
            raise
        except (RedisUnavailable, TimeoutError) as error:
            self.close()
            if isinstance(error, RedisUnavailable):
                raise
            raise RedisUnavailable(f"Redis at {self._config.url}: no answer within {wait_s:g} s") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _usable(self) -> RespConnection:
        async with self._dialling:
            if self._connection is None or not self._connection.usable:
                self.close()
                self._connection = await dial(self._config, _unasked)
            return self._connection


def _unasked(_reply: Reply) -> None:
    """Nothing is pushed on a connection that only answers."""
