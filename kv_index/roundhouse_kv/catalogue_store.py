"""The catalogue in Redis: one hash per installation, written by one operator at a time, fenced by its term.

A leader takes a term greater than every one before; a script refuses the writes of older ones. When Redis was
emptied, the term is gone too: the first writer puts its own back, so a leader that stays simply publishes again.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from roundhouse_kv.errors import StaleTerm, WireError
from roundhouse_kv.names import Installation
from roundhouse_kv.records import READABLE_VERSIONS, RECORD_VERSION, ServiceEntry, decode_record, encode_record
from roundhouse_kv.redis_link import RedisLink

log = logging.getLogger(__name__)

# KEYS: catalogue, term, channel. ARGV: record version, term, least version, then field and value of every service.
# Answers {1, version}, or {0, stored term} when the writer's term is an old one.
_PUBLISH = """
local stored = tonumber(redis.call('GET', KEYS[2]) or '0')
local term = tonumber(ARGV[2])
if stored > term then return {0, stored} end
if stored < term then redis.call('SET', KEYS[2], ARGV[2]) end
local have = {}
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do have[flat[i]] = flat[i + 1] end
local version = tonumber(have['version'] or '0')
local changed = have['v'] ~= ARGV[1] or have['term'] ~= ARGV[2]
have['v'], have['term'], have['version'] = nil, nil, nil
for i = 4, #ARGV, 2 do
  if have[ARGV[i]] ~= ARGV[i + 1] then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    changed = true
  end
  have[ARGV[i]] = nil
end
for field, _ in pairs(have) do
  redis.call('HDEL', KEYS[1], field)
  changed = true
end
if not changed then return {1, version} end
version = math.max(version, tonumber(ARGV[3])) + 1
redis.call('HSET', KEYS[1], 'v', ARGV[1], 'term', ARGV[2], 'version', version)
redis.call('PUBLISH', KEYS[3], ARGV[2] .. ':' .. version)
return {1, version}
"""
_RESERVED = (b"v", b"term", b"version")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the operator says exists, by ``namespace/name``. ``unreadable`` names entries not readable here."""

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
        self._version = 0

    async def take_term(self) -> int:
        """Become the writer: a term greater than every one before."""
        term: int = await self._link.ask(self._link.client.incr(self._names.term))
        return term

    async def publish(self, term: int, services: Mapping[str, ServiceEntry]) -> int:
        """Make the catalogue equal to ``services``; only differences are written. Returns its version.

        Versions never repeat within this writer's life, even when Redis loses the stored one.
        Raises `StaleTerm` when another operator has taken a later term.
        """
        fields = [part for key, entry in services.items() for part in (key.encode(), encode_record(entry))]
        names = self._names
        accepted, number = await self._link.ask(
            self._link.client.eval(
                _PUBLISH, 3, names.catalogue, names.term, names.catalogue_channel,
                RECORD_VERSION, term, self._version, *fields,
            )
        )  # fmt: skip
        if not accepted:
            raise StaleTerm(f"catalogue write with term {term}, but term {number} has been taken")
        self._version = int(number)
        return self._version

    async def stamp(self) -> tuple[int, int] | None:
        """(term, version), None while there is no catalogue."""
        [(term, version)] = await self._link.bare.ask(("HMGET", self._names.catalogue, "term", "version"))
        try:
            return int(term), int(version)
        except (TypeError, ValueError):
            return None

    async def read(self) -> Catalogue | None:
        """None while there is none. Raises `WireError` when the catalogue as a whole cannot be read."""
        fields: dict[bytes, bytes] = await self._link.ask(self._link.client.hgetall(self._names.catalogue))
        return parse_catalogue(fields)


def parse_catalogue(fields: Mapping[bytes, bytes]) -> Catalogue | None:
    """The catalogue from its hash. Raises `WireError`; single entries that cannot be read are named, not fatal."""
    if not fields:
        return None
    try:
        v, term, version = (int(fields[name]) for name in _RESERVED)
    except (KeyError, ValueError) as error:
        raise WireError(f"catalogue without a readable v, term or version: {error}") from error
    if v not in READABLE_VERSIONS:
        raise WireError(f"catalogue: version {v}, this reader knows {sorted(READABLE_VERSIONS)}")
    services: dict[str, ServiceEntry] = {}
    unreadable: list[str] = []
    for name, data in fields.items():
        if name in _RESERVED:
            continue
        key = name.decode(errors="replace")
        try:
            services[key] = decode_record(ServiceEntry, data)
        except WireError as error:
            log.warning("catalogue_entry_unreadable", extra={"service": key, "error": str(error)})
            unreadable.append(key)
    return Catalogue(term, version, services, tuple(unreadable))
