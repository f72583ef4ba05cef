"""Books ↔ the services' books channels.

A change leaves at once: the first one wakes the sender, and what comes while a message is on its way, or within 2 ms
after it, goes together. Every second each service's whole table follows, at start and after a reconnect as well. What
cannot be sent is dropped; readers see the gap and ask.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from roundhouse_kv.books import Books
from roundhouse_kv.books_wire import BookMessage, decode_message, encode_message, is_echo
from roundhouse_kv.errors import RedisUnavailable, WireError
from roundhouse_kv.names import ServiceKeys
from roundhouse_kv.redis_link import RedisLink, close_client

log = logging.getLogger(__name__)

TABLE_PERIOD_S: Final = 1.0
TICK_S: Final = 0.1


class BooksFeed:
    """One task sends for all services, over one connection, so that messages keep their order."""

    def __init__(self, link: RedisLink, clock: Callable[[], float]) -> None:
        self._link = link
        self._clock = clock
        self._client = link.open_client()
        self._books: dict[ServiceKeys, Books] = {}
        self._dirty: set[ServiceKeys] = set()
        self._wake = asyncio.Event()
        self._tables_at = float("-inf")
        self._expired_at = float("-inf")
        self._generation = -1

    def follow(self, keys: ServiceKeys, books: Books) -> None:
        self._books[keys] = books
        books.wake = lambda: self._changed(keys)
        books.table_due = True
        self._changed(keys)

    def forget(self, keys: ServiceKeys) -> None:
        books = self._books.pop(keys, None)
        if books is not None:
            books.wake = None
        self._dirty.discard(keys)

    def heard(self, keys: ServiceKeys, data: bytes) -> None:
        """A message of a service's books channel."""
        books = self._books.get(keys)
        if books is None or is_echo(data, books.me):
            return
        try:
            books.apply(decode_message(data), self._clock())
        except WireError as error:
            log.warning("books message unreadable", extra={"service": keys.prefix, "error": str(error)})

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                await self._wait()
                now = self._clock()
                self._tick(now)
                await self._send(now)
        finally:
            await close_client(self._client, self._link.config.timeout_s)

    def _tick(self, now: float) -> None:
        """What time alone brings about: the silent expire, and tables are due."""
        if now - self._expired_at >= TICK_S:
            self._expired_at = now
            for books in self._books.values():
                books.expire(now)
        if now - self._tables_at >= TABLE_PERIOD_S or self._generation != self._link.generation:
            self._tables_at, self._generation = now, self._link.generation
            for keys, books in self._books.items():
                books.table_due = True
                self._dirty.add(keys)

    async def _wait(self) -> None:
        """Until something changed, what was held back may go, or a tick has passed."""
        now = self._clock()
        dues = [due for keys in self._dirty if (due := self._books[keys].outbox_due(now)) is not None]
        try:
            async with asyncio.timeout(min([TICK_S, *dues])):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _send(self, now: float) -> None:
        """Everything due, in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        for keys in list(self._dirty):
            books = self._books[keys]
            for message in _due(books, now):
                pipe.publish(keys.books_channel, encode_message(message))
            if books.outbox_due(now) is None:
                self._dirty.discard(keys)
        if len(pipe) and self._link.healthy:  # else dropped: a dial for every request would cost more than the request
            try:
                await self._link.ask(pipe.execute())
            except RedisUnavailable as error:
                log.debug("books not sent", extra={"error": str(error)})

    def _changed(self, keys: ServiceKeys) -> None:
        self._dirty.add(keys)
        self._wake.set()


def _due(books: Books, now: float) -> list[BookMessage]:
    """Changes first: a table must not overtake them."""
    messages = []
    delta = books.outbox(now)
    if delta is not None:
        messages.append(delta)
    messages += books.asks()
    if books.table_due:
        messages.append(books.table(now))
    return messages
