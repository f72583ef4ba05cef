"""Keeps the catalogue in Redis equal to what the reconcile loop knows.

The first publication waits until every service has been looked at once: with half a catalogue gateways would answer
404 for models that exist. What is stored already is taken over before it, so that a service whose look failed keeps
its entry, and one that was deleted while no operator ran is noticed. Afterwards a changed entry is published at once,
and everything is published again when somebody finds that something else is stored.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from roundhouse_kv.catalogue_store import Catalogue
from roundhouse_kv.errors import RedisUnavailable, StaleTerm, WireError
from roundhouse_kv.records import ServiceEntry

log = logging.getLogger(__name__)

_REST: Final = 9.0
"""Times what a publication took: each compares all services; while very many change, that takes a tenth of the time."""
_LONGEST_REST_S: Final = 1.0


class Store(Protocol):
    """`roundhouse_kv.catalogue_store.CatalogueStore`, as far as it is used here."""

    async def take_term(self) -> int: ...

    async def publish(self, term: int, services: dict[str, ServiceEntry]) -> int: ...

    async def read(self) -> Catalogue | None: ...


class CataloguePublisher:
    """``on_stamp`` hears (term, version) after each publication, ``on_found`` the keys of stored entries that were not
    known; ``may_lead`` is asked before a new term is taken.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_stamp: Callable[[tuple[int, int] | None], None],
        on_found: Callable[[str], None],
        may_lead: Callable[[], bool] = lambda: True,
        retry_s: float = 1.0,
    ) -> None:
        self._store = store
        self._on_stamp = on_stamp
        self._on_found = on_found
        self._may_lead = may_lead
        self._retry_s = retry_s
        self._entries: dict[str, ServiceEntry] = {}
        self._unseen: set[str] | None = None
        self._wake = asyncio.Event()
        self._term: int | None = None
        self.stamp: tuple[int, int] | None = None
        """What was published last."""

    def entry(self, key: str) -> ServiceEntry | None:
        return self._entries.get(key)

    def entries(self) -> dict[str, ServiceEntry]:
        return dict(self._entries)

    async def load(self) -> None:
        """Take over stored entries that are not known. An unreadable catalogue counts as none."""
        try:
            stored = await self._store.read()
        except WireError as error:
            log.warning("catalogue_unreadable", extra={"error": str(error)})
            return
        for key, entry in (stored.services if stored else {}).items():
            if key not in self._entries:
                self._entries[key] = entry
                self._on_found(key)

    def expect(self, keys: Iterable[str]) -> None:
        """Publish for the first time when all of these were reported by `seen`."""
        self._unseen = set(keys)
        self._wake.set()

    def seen(self, key: str) -> None:
        """This service was looked at, with success or not."""
        if self._unseen:
            self._unseen.discard(key)
            if not self._unseen:
                self._wake.set()

    def put(self, key: str, entry: ServiceEntry) -> None:
        if self._entries.get(key) != entry:
            self._entries[key] = entry
            self._wake.set()

    def remove(self, key: str) -> None:
        if self._entries.pop(key, None) is not None:
            self._wake.set()

    def republish(self) -> None:
        """Something else than ours may be stored."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._unseen is None or self._unseen:
                continue
            begun = time.monotonic()
            try:
                await self._publish()
                await asyncio.sleep(min(_LONGEST_REST_S, _REST * (time.monotonic() - begun)))
            except RedisUnavailable as error:
                log.warning("catalogue_not_published", extra={"error": str(error)})
                await self._again()
            except StaleTerm as error:
                log.warning("catalogue_term_lost", extra={"error": str(error)})
                self._term = None
                await self._again()

    async def _publish(self) -> None:
        if self._term is None:
            if not self._may_lead():
                return
            self._term = await self._store.take_term()
            await self.load()
        version = await self._store.publish(self._term, dict(self._entries))
        stamp = (self._term, version)
        if stamp != self.stamp:
            log.info("catalogue_published", extra={"term": self._term, "version": version})
        self.stamp = stamp
        self._on_stamp(stamp)

    async def _again(self) -> None:
        await asyncio.sleep(self._retry_s)
        self._wake.set()
