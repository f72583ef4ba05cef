"""The catalogue in Redis: one hash per installation, written by one operator at a time, fenced by its term."""

from collections.abc import Mapping
from dataclasses import dataclass

from roundhouse_kv.names import Installation
from roundhouse_kv.records import ServiceEntry
from roundhouse_kv.redis_link import RedisLink


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the operator says exists, by ``namespace/name``. ``unreadable`` names entries this reader cannot read."""

    term: int
    version: int
    services: Mapping[str, ServiceEntry]
    unreadable: tuple[str, ...] = ()

    @property
    def stamp(self) -> tuple[int, int]:
        return self.term, self.version


class CatalogueStore:
    """Every method raises `RedisUnavailable` when Redis does not answer in time."""

    def __init__(self, link: RedisLink, installation: Installation) -> None:
        self._link = link
        self._names = installation

    async def take_term(self) -> int:
        """Become the writer: a term greater than every one before."""
        raise NotImplementedError

    async def publish(self, term: int, services: Mapping[str, ServiceEntry]) -> int:
        """Make the catalogue equal to ``services``; only differences are written. Returns its version.

        Raises `StaleTerm` when another operator has taken a later term.
        """
        raise NotImplementedError

    async def stamp(self) -> tuple[int, int] | None:
        """(term, version), None while there is no catalogue."""
        raise NotImplementedError

    async def read(self) -> Catalogue | None:
        """Raises `WireError` when the catalogue as a whole is of an unknown version."""
        raise NotImplementedError
