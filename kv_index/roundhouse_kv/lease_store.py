"""Leases and profiles of one service in Redis."""

from collections.abc import Iterable

from roundhouse_kv.names import ServiceKeys
from roundhouse_kv.records import Lease, Profile
from roundhouse_kv.redis_link import RedisLink

LEASE_TTL_S = 5
PROFILE_TTL_S = 600


class LeaseStore:
    """Every method raises `RedisUnavailable` when Redis does not answer in time."""

    def __init__(self, link: RedisLink, keys: ServiceKeys) -> None:
        self._link = link
        self._keys = keys

    async def write(self, lease: Lease, *, announce: bool) -> None:
        """Store for five seconds; ``announce`` also publishes it on the service's lease channel."""
        raise NotImplementedError

    async def remove(self, replica_uid: str) -> None:
        raise NotImplementedError

    async def read(self, uids: Iterable[str]) -> dict[str, Lease]:
        """Leases by replica uid; missing and unreadable ones are left out."""
        raise NotImplementedError

    async def write_profile(self, profile: Profile) -> str:
        """Store for ten minutes; returns the digest."""
        raise NotImplementedError

    async def touch_profile(self, digest: str) -> bool:
        """Refresh its time to live; False when it is gone and must be written again."""
        raise NotImplementedError

    async def read_profile(self, digest: str) -> Profile | None:
        """None when absent. Raises `WireError` when it cannot be read."""
        raise NotImplementedError

    async def purge(self) -> int:
        """Delete every key of this service; returns how many there were."""
        raise NotImplementedError
