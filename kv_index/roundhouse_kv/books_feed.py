"""Books ↔ the services' books channels.

A change leaves at once: the first one arms a callback, and what comes until it runs, or within 2 ms after a message,
goes together. Every second each service's whole table follows, at start and after a reconnect as well. What cannot be
sent is dropped; readers see the gap and ask.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from roundhouse_kv.books import Books
from roundhouse_kv.books_wire import decode_message, encode_message, is_echo
from roundhouse_kv.errors import RedisUnavailable, WireError
from roundhouse_kv.names import ServiceKeys
from roundhouse_kv.redis_link import RedisLink
from roundhouse_kv.resp_connection import Reply, RespConnection, dial

log = logging.getLogger(__name__)

TABLE_PERIOD_S: Final = 1.0
TICK_S: Final = 0.25


class BooksFeed:
    """Sends for all services over one connection, so that messages keep their order."""

    def __init__(self, link: RedisLink, clock: Callable[[], float]) -> None:
        self._link = link
        self._clock = clock
        self._books: dict[ServiceKeys, Books] = {}
        self._dirty: set[ServiceKeys] = set()
        self._connection: RespConnection | None = None
        self._armed: asyncio.Handle | None = None
        self._tables_at = float("-inf")
        self._refused = False
        self._running = False

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
            log.warning("books_message_unreadable", extra={"service": keys.prefix, "error": str(error)})

    async def run(self) -> None:
        """Send until cancelled."""
        self._running = True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tick_forever(), name="books ticks")
                tasks.create_task(self._connect_forever(), name="books connection")
        finally:
            self._running = False
            if self._armed is not None:
                self._armed.cancel()
                self._armed = None
            if self._connection is not None:
                self._connection.close()

    async def _tick_forever(self) -> None:
        """What time alone brings about: the silent expire, and tables are due."""
        while True:
            now = self._clock()
            for books in self._books.values():
                books.expire(now)
            if now - self._tables_at >= TABLE_PERIOD_S:
                self._all_tables_due(now)
            await asyncio.sleep(TICK_S)

    async def _connect_forever(self) -> None:
        while True:
            generation = self._link.generation
            try:
                self._connection = await dial(self._link.config, self._replied)
            except RedisUnavailable as error:
                log.debug("books_not_sent", extra={"error": str(error)})
                await asyncio.sleep(TICK_S)
                continue
            self._refused = False
            self._all_tables_due(self._clock())
            while not self._connection.lost and generation == self._link.generation:
                await self._connection.until_lost(TICK_S)
            self._connection.close()

    def _all_tables_due(self, now: float) -> None:
        self._tables_at = now
        for keys, books in self._books.items():
            books.table_due = True
            self._changed(keys)

    def _changed(self, keys: ServiceKeys) -> None:
        self._dirty.add(keys)
        if self._armed is None and self._running:
            due = self._books[keys].outbox_due(self._clock())
            self._arm(due or 0.0)

    def _arm(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._armed = loop.call_later(delay_s, self._flush) if delay_s > 0 else loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send everything due; arm again for what must wait."""
        self._armed = None
        now = self._clock()
        connection = self._connection
        usable = connection is not None and connection.usable and self._link.healthy
        waiting = None
        for keys in list(self._dirty):
            books = self._books[keys]
            for message in _due(books, now):
                if usable and connection is not None:
                    connection.send("PUBLISH", keys.books_channel, message)
            due = books.outbox_due(now)
            if due is None:
                self._dirty.discard(keys)
            else:
                waiting = due if waiting is None else min(waiting, due)
        if waiting is not None:
            self._arm(max(waiting, 1e-4))

    def _replied(self, reply: Reply) -> None:
        if isinstance(reply, Exception) and not self._refused:
            self._refused = True
            log.warning("books_refused", extra={"error": str(reply)})


def _due(books: Books, now: float) -> list[bytes]:
    """Changes first: a table must not overtake them."""
    messages = []
    delta = books.outbox(now)
    if delta is not None:
        messages.append(delta)
    messages += map(encode_message, books.asks())
    if books.table_due:
        messages.append(encode_message(books.table(now)))
    return messages
