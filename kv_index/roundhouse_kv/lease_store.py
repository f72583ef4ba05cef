"""Leases and profiles of one service in Redis."""

import logging
import re
from collections.abc import Iterable

from roundhouse_kv.errors import WireError
from roundhouse_kv.names import ServiceKeys
from roundhouse_kv.records import Lease, Profile, decode_record, encode_record
from roundhouse_kv.redis_link import RedisLink

log = logging.getLogger(__name__)

LEASE_TTL_S = 5
PROFILE_TTL_S = 600
_SCAN_COUNT = 1000


class LeaseStore:
    """Every method raises `RedisUnavailable` when Redis does not answer in time."""

    def __init__(self, link: RedisLink, keys: ServiceKeys) -> None:
        self._link = link
        self._keys = keys

    async def write(self, lease: Lease, *, announce: bool) -> None:
        """Store for five seconds; ``announce`` also publishes it on the service's lease channel."""
        data = encode_record(lease)
        pipe = self._link.client.pipeline(transaction=False)
        pipe.set(self._keys.lease(lease.replica_uid), data, ex=LEASE_TTL_S)
        if announce:
            pipe.publish(self._keys.lease_channel, data)
        await self._link.ask(pipe.execute())

    async def remove(self, replica_uid: str) -> None:
        await self._link.ask(self._link.client.delete(self._keys.lease(replica_uid)))

    async def read(self, uids: Iterable[str]) -> dict[str, Lease]:
        """Leases by replica uid; missing and unreadable ones are left out."""
        wanted = list(uids)
        if not wanted:
            return {}
        values = await self._link.ask(self._link.client.mget([self._keys.lease(uid) for uid in wanted]))
        return parse_leases(wanted, values)

    async def write_profile(self, profile: Profile) -> str:
        """Store for ten minutes; returns the digest."""
        digest = profile.digest
        await self._link.ask(
            self._link.client.set(self._keys.profile(digest), encode_record(profile), ex=PROFILE_TTL_S)
        )
        return digest

    async def write_table(self, digest: str, table: bytes) -> None:
        """The packed token table that belongs to a profile; as long-lived."""
        await self._link.ask(self._link.client.set(self._keys.token_table(digest), table, ex=PROFILE_TTL_S))

    async def read_table(self, digest: str) -> bytes | None:
        """None when the profile has none."""
        table: bytes | None = await self._link.ask(self._link.client.get(self._keys.token_table(digest)))
        return table

    async def touch_profile(self, digest: str, *, table: bool = False) -> bool:
        """Refresh its time to live, and that of its ``table``; False when one is gone and must be written again."""
        pipe = self._link.client.pipeline(transaction=False)
        pipe.expire(self._keys.profile(digest), PROFILE_TTL_S)
        if table:
            pipe.expire(self._keys.token_table(digest), PROFILE_TTL_S)
        return all(await self._link.ask(pipe.execute()))

    async def read_profile(self, digest: str) -> Profile | None:
        """None when absent. Raises `WireError` when it cannot be read."""
        data = await self._link.ask(self._link.client.get(self._keys.profile(digest)))
        return None if data is None else decode_record(Profile, data)

    async def purge(self) -> int:
        """Delete every key of this service; returns how many there were."""
        pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", self._keys.prefix) + ":*"
        client = self._link.client
        deleted, cursor = 0, 0
        while True:
            cursor, names = await self._link.ask(client.scan(cursor, match=pattern, count=_SCAN_COUNT))
            if names:
                deleted += await self._link.ask(client.unlink(*names))
            if not cursor:
                return deleted


def parse_leases(uids: Iterable[str], values: Iterable[bytes | None]) -> dict[str, Lease]:
    """Answers of an MGET; missing and unreadable leases are left out."""
    leases: dict[str, Lease] = {}
    for uid, data in zip(uids, values, strict=True):
        if data is None:
            continue
        try:
            leases[uid] = decode_record(Lease, data)
        except WireError as error:
            log.warning("lease_unreadable", extra={"replica_uid": uid, "error": str(error)})
    return leases
