"""Everything that one gateway follows in Redis: catalogue, leases, profiles, KV log, books.

`run` never raises for Redis's sake: while Redis is down, slow or empty, the views keep their last state.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roundhouse_kv.books import Books
from roundhouse_kv.catalogue_store import Catalogue
from roundhouse_kv.index import ServiceIndex
from roundhouse_kv.names import Installation
from roundhouse_kv.records import Lease, Profile, ServiceEntry
from roundhouse_kv.redis_link import RedisLink


@dataclass(slots=True)
class SeenLease:
    """A lease, when it was last heard (own monotonic seconds), and whether it is stale by now."""

    lease: Lease
    heard_at: float
    stale: bool = False


@dataclass(slots=True)
class ServiceView:
    """One service as this gateway knows it. Updated in place; ``leases`` by replica uid, ``profiles`` by digest."""

    entry: ServiceEntry
    index: ServiceIndex
    books: Books
    leases: dict[str, SeenLease] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)


class GatewayFeed:
    """``catalogue_file`` keeps the last catalogue over restarts; ``clock`` serves leases, index and books alike."""

    def __init__(
        self,
        link: RedisLink,
        installation: Installation,
        incarnation: int,
        *,
        catalogue_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._names = installation
        self.incarnation = incarnation
        self._clock = clock
        self._file = catalogue_file

    @property
    def catalogue(self) -> Catalogue | None:
        """The last known one, from Redis or from the file; None before the first."""
        raise NotImplementedError

    @property
    def catalogue_age(self) -> float | None:
        """Seconds since Redis last confirmed it; None while it is only from the file."""
        raise NotImplementedError

    def view(self, service_key: str) -> ServiceView | None:
        """By ``namespace/name``; None when the catalogue has no such service."""
        raise NotImplementedError

    @property
    def views(self) -> Mapping[str, ServiceView]:
        raise NotImplementedError

    async def run(self) -> None:
        """Follow until cancelled."""
        raise NotImplementedError
