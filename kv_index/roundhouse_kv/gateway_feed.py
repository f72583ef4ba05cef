"""Everything that one gateway follows in Redis: catalogue, leases, profiles, KV log, books.

Four tasks: channels (catalogue changed, leases, books), a poll each second (the catalogue's stamp and all leases, for
what a channel may have missed), the KV logs, and the sender of books. None of them ever fails for Redis's sake: while
Redis is down, slow or empty, views keep their last state, and nothing is judged stale until Redis has been back for a
while.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from roundhouse_kv.books import Books
from roundhouse_kv.books_feed import BooksFeed
from roundhouse_kv.catalogue_file import load_catalogue, save_catalogue
from roundhouse_kv.catalogue_store import Catalogue, CatalogueStore
from roundhouse_kv.channel_feed import ChannelFeed
from roundhouse_kv.errors import RedisUnavailable, WireError
from roundhouse_kv.index import ServiceIndex
from roundhouse_kv.kv_feed import KvFeed
from roundhouse_kv.lease_store import LeaseStore, parse_leases
from roundhouse_kv.names import Installation
from roundhouse_kv.records import Lease, ServiceEntry, decode_record
from roundhouse_kv.redis_link import RedisLink
from roundhouse_kv.token_table import TokenTable, unpack_table
from roundhouse_kv.view import SeenLease, ServiceView, member_uids

__all__ = ["GatewayFeed", "SeenLease", "ServiceView"]

log = logging.getLogger(__name__)

POLL_S: Final = 1.0


class GatewayFeed:
    """``catalogue_file`` keeps the last catalogue over restarts; ``clock`` serves leases, index and books alike.

    ``on_catalogue`` is called after every change of the catalogue.
    """

    def __init__(
        self,
        link: RedisLink,
        installation: Installation,
        incarnation: int,
        *,
        catalogue_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_catalogue: Callable[[], None] | None = None,
    ) -> None:
        self._link = link
        self._names = installation
        self.incarnation = incarnation
        self._clock = clock
        self._file = catalogue_file
        self._on_catalogue = on_catalogue
        self._store = CatalogueStore(link, installation)
        self._catalogue: Catalogue | None = None
        self._confirmed_at: float | None = None
        self._views: dict[str, ServiceView] = {}
        self.looked = asyncio.Event()
        """Set once everything was read from Redis for the first time."""
        self._poll_now = asyncio.Event()
        self._reread = True
        self._kv = KvFeed(link, clock)
        self._books = BooksFeed(link, clock)
        self._channels = ChannelFeed(link, self._read_all_again)
        self._channels.handlers[installation.catalogue_channel] = lambda _: self._read_all_again()
        if catalogue_file is not None and (saved := load_catalogue(catalogue_file)) is not None:
            self._adopt(saved)

    @property
    def catalogue(self) -> Catalogue | None:
        """The last known one, from Redis or from the file; None before the first."""
        return self._catalogue

    @property
    def catalogue_age(self) -> float | None:
        """Seconds since Redis last confirmed it; None while it is only from the file."""
        return None if self._confirmed_at is None else self._clock() - self._confirmed_at

    def view(self, service_key: str) -> ServiceView | None:
        """By ``namespace/name``; None when the catalogue has no such service."""
        return self._views.get(service_key)

    @property
    def views(self) -> Mapping[str, ServiceView]:
        return self._views

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._channels.run(), name="channels")
            tasks.create_task(self._poll_forever(), name="poll")
            tasks.create_task(self._kv.run(), name="KV logs")
            tasks.create_task(self._books.run(), name="books")

    async def _poll_forever(self) -> None:
        while True:
            self._poll_now.clear()
            try:
                await self._poll_catalogue()
                await self._poll_leases()
                await self._poll_profiles()
                self.looked.set()
            except RedisUnavailable as error:
                log.debug("poll_failed", extra={"error": str(error)})
            if self._link.settled:
                for view in self._views.values():
                    view.judge(self._clock())
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._poll_now.wait()

    async def _poll_catalogue(self) -> None:
        stamp = await self._store.stamp()
        if stamp is None:
            return
        known = self._catalogue
        if known is not None and stamp == known.stamp and not self._reread:
            self._confirmed_at = self._clock()
            return
        if known is not None and self._confirmed_at is not None and stamp < known.stamp and not self._link.settled:
            return  # a server that has just come up; what it has may be from before
        self._reread = False
        try:
            read = await self._store.read()
        except WireError as error:
            log.warning("catalogue_unreadable", extra={"error": str(error)})
            return
        if read is not None:
            self._confirmed_at = self._clock()
            if known is None or read != known:
                self._adopt(read)
                if self._file is not None:
                    await asyncio.to_thread(save_catalogue, self._file, read)

    async def _poll_leases(self) -> None:
        """All leases in one round trip; what a channel said meanwhile is newer than the answer."""
        asked_at = self._clock()
        asked = [(view, list(member_uids(view.entry))) for view in self._views.values() if view.entry.members]
        if not asked:
            return
        answers = await self._link.bare.ask(*(("MGET", *map(view.keys.lease, uids)) for view, uids in asked))
        now = self._clock()
        for (view, uids), values in zip(asked, answers, strict=True):
            for uid, lease in parse_leases(uids, values).items():
                seen = view.leases.get(uid)
                if lease.replica_uid == uid and (seen is None or seen.heard_at < asked_at):
                    view.hear(lease, now)

    async def _poll_profiles(self) -> None:
        for view in list(self._views.values()):
            view.forget_profiles()
            store = LeaseStore(self._link, view.keys)
            for digest in view.missing_profiles():
                try:
                    profile = await store.read_profile(digest)
                except WireError as error:
                    log.warning("profile_unreadable", extra={"digest": digest, "error": str(error)})
                    view.unreadable_profiles.add(digest)
                    continue
                if profile is not None:
                    if (table := await self._table(store, digest)) is not None:
                        view.tables[digest] = table
                    view.profiles[digest] = profile

    async def _table(self, store: LeaseStore, digest: str) -> TokenTable | None:
        """Inflated in a thread: a big vocabulary takes tens of milliseconds."""
        data = await store.read_table(digest)
        try:
            return None if data is None else await asyncio.to_thread(unpack_table, data)
        except WireError as error:
            log.warning("token_table_unreadable", extra={"digest": digest, "error": str(error)})
            return None

    def _adopt(self, catalogue: Catalogue) -> None:
        now = self._clock()
        self._catalogue = catalogue
        kept = set(catalogue.services) | set(catalogue.unreadable)
        for key in [key for key in self._views if key not in kept]:
            self._remove(self._views.pop(key))
        for key, entry in catalogue.services.items():
            view = self._views.get(key)
            if view is None or view.entry.uid != entry.uid:
                if view is not None:
                    self._remove(view)
                view = self._views[key] = self._add(entry)
            view.change(entry, now)
            self._kv.follow(view.keys, view.index, view.pods, _epoch_seen(view.books, self._clock))
        if self._on_catalogue is not None:
            self._on_catalogue()

    def _add(self, entry: ServiceEntry) -> ServiceView:
        keys = self._names.service(entry.namespace, entry.name)
        view = ServiceView(keys, entry, ServiceIndex(), Books(self.incarnation))
        self._books.follow(keys, view.books)
        self._channels.handlers[keys.lease_channel] = lambda data: self._heard_lease(view, data)
        self._channels.handlers[keys.books_channel] = lambda data: self._books.heard(keys, data)
        return view

    def _remove(self, view: ServiceView) -> None:
        self._kv.forget(view.keys)
        self._books.forget(view.keys)
        self._channels.handlers.pop(view.keys.lease_channel, None)
        self._channels.handlers.pop(view.keys.books_channel, None)

    def _heard_lease(self, view: ServiceView, data: bytes) -> None:
        try:
            lease = decode_record(Lease, data)
        except WireError as error:
            log.warning("lease_unreadable", extra={"service": view.keys.prefix, "error": str(error)})
            return
        if view.hear(lease, self._clock()) and lease.profile and lease.profile not in view.profiles:
            self._poll_now.set()

    def _read_all_again(self) -> None:
        self._reread = True
        self._poll_now.set()


def _epoch_seen(books: Books, clock: Callable[[], float]) -> Callable[..., None]:
    return lambda pod_uid, epoch: books.drop_before(pod_uid, epoch, clock())
