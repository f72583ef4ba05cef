"""Redis channels → callbacks, over one connection whose subscriptions follow a changing set.

When the connection or the server was lost, so were messages: ``on_resubscribed`` says that everything has to be read
again.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.redis_link import RedisLink, close_client

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
RETRY_S: Final = 0.25

Handler = Callable[[bytes], None]


class ChannelFeed:
    """``handlers`` by channel name; change it at any time, subscriptions follow within 0.1 s."""

    def __init__(self, link: RedisLink, on_resubscribed: Callable[[], None]) -> None:
        self._link = link
        self._client = link.open_client()
        self._on_resubscribed = on_resubscribed
        self._subscribed: set[str] = set()
        self.handlers: dict[str, Handler] = {}

    async def run(self) -> None:
        """Listen until cancelled."""
        try:
            while True:
                try:
                    await self._listen()
                except RedisUnavailable as error:
                    log.debug("channels unavailable", extra={"error": str(error)})
                await asyncio.sleep(RETRY_S)
        finally:
            await close_client(self._client, self._link.config.timeout_s)

    async def _listen(self) -> None:
        """One connection, until it or its server is lost. Raises `RedisUnavailable`."""
        generation = self._link.generation
        pubsub = self._client.pubsub()
        self._subscribed = set()
        try:
            while self._link.generation == generation:
                if self._subscribed != self.handlers.keys():
                    fresh = not self._subscribed
                    await self._subscribe(pubsub)
                    if fresh:
                        self._on_resubscribed()
                if self._subscribed:
                    await self._take(pubsub)
                else:
                    await asyncio.sleep(TICK_S)
        finally:
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(self._link.config.timeout_s):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _subscribe(self, pubsub: PubSub) -> None:
        wanted = set(self.handlers)
        if wanted - self._subscribed:
            await self._link.ask(pubsub.subscribe(*(wanted - self._subscribed)))
        if self._subscribed - wanted:
            await self._link.ask(pubsub.unsubscribe(*(self._subscribed - wanted)))
        self._subscribed = wanted

    async def _take(self, pubsub: PubSub) -> None:
        message = await self._link.ask(
            pubsub.get_message(ignore_subscribe_messages=True, timeout=TICK_S),
            deadline_s=TICK_S + self._link.config.timeout_s,
        )
        if message is not None:
            handler = self.handlers.get(message["channel"].decode())
            if handler is not None:
                handler(message["data"])
