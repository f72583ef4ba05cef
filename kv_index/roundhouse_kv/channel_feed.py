"""Redis channels → callbacks, over one connection whose subscriptions follow a changing set.

When the connection or the server was lost, so were messages: ``on_resubscribed`` says that everything has to be read
again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.redis_link import RedisLink
from roundhouse_kv.resp_connection import Reply, RespConnection, dial

log = logging.getLogger(__name__)

TICK_S: Final = 0.2
RETRY_S: Final = 0.25

Handler = Callable[[bytes], None]


class ChannelFeed:
    """``handlers`` by channel name; change it at any time, subscriptions follow within 0.1 s."""

    def __init__(self, link: RedisLink, on_resubscribed: Callable[[], None]) -> None:
        self._link = link
        self._on_resubscribed = on_resubscribed
        self._subscribed: set[str] = set()
        self._answered: set[str] = set()
        self._refusal: Exception | None = None
        self.handlers: dict[str, Handler] = {}

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                await self._listen()
            except RedisUnavailable as error:
                log.debug("channels_unavailable", extra={"error": str(error)})
            await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        """One connection, until it or its server is lost. Raises `RedisUnavailable`."""
        generation = self._link.generation
        connection = await dial(self._link.config, self._heard)
        self._subscribed, self._answered, self._refusal = set(), set(), None
        try:
            while self._link.generation == generation and not connection.lost:
                if self._subscribed != self.handlers.keys():
                    await self._subscribe(connection)
                await connection.until_lost(TICK_S)
        finally:
            connection.close()

    async def _subscribe(self, connection: RespConnection) -> None:
        """Nothing published from here on is missed. Raises `RedisUnavailable`."""
        fresh, wanted = not self._subscribed, set(self.handlers)
        gone, new = self._subscribed - wanted, wanted - self._subscribed
        if gone:
            connection.send("UNSUBSCRIBE", *gone)
            self._answered -= gone
        if new:
            connection.send("SUBSCRIBE", *new)
            await self._confirmed(connection, new)
        self._subscribed = wanted
        if fresh:
            self._on_resubscribed()

    async def _confirmed(self, connection: RespConnection, channels: Iterable[str]) -> None:
        deadline = asyncio.get_running_loop().time() + self._link.config.timeout_s
        while not self._answered.issuperset(channels):
            if self._refusal is not None or connection.lost:
                raise RedisUnavailable(f"cannot subscribe: {self._refusal or 'connection lost'}")
            if asyncio.get_running_loop().time() > deadline:
                raise RedisUnavailable("cannot subscribe: no answer in time")
            await asyncio.sleep(0.005)

    def _heard(self, reply: Reply) -> None:
        if isinstance(reply, Exception):
            self._refusal = reply
            return
        kind, channel, data = reply
        name = channel.decode()
        if kind == b"message":
            handler = self.handlers.get(name)
            if handler is not None:
                handler(data)
        elif kind == b"subscribe":
            self._answered.add(name)
