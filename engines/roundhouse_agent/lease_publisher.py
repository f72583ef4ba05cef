"""The lease, once a second and on every change that matters: a change of state at once, others at most 4 a second.

Also keeps the profile in Redis alive. Redis may be away or mute: an attempt ends by its deadline, and counts as having
told the readers, because waiting longer would only hold up the drain.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.lease_store import LeaseStore
from roundhouse_kv.records import Lease, Profile
from roundhouse_kv.redis_link import RedisLink

from roundhouse_agent.replica import Replica, announces, at_once

log = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
SPACING_S: Final = 0.25


def due_in(last: Lease | None, lease: Lease, since_s: float) -> float:
    """Seconds until ``lease`` is to be sent, when ``last`` was sent or tried ``since_s`` ago."""
    if at_once(last, lease):
        return 0.0
    return max(0.0, (SPACING_S if announces(last, lease) else PERIOD_S) - since_s)


class LeasePublisher:
    """``clock`` gives monotonic seconds. ``profile`` is what the lease's ``profile`` names, ``table`` its packed token
    table, which is there before whoever finds the profile asks for it."""

    def __init__(self, replica: Replica, link: RedisLink, store: LeaseStore, clock: Callable[[], float]) -> None:
        self._replica = replica
        self._link = link
        self._store = store
        self._clock = clock
        self._tried: Lease | None = None
        self._tried_at = float("-inf")
        self._heard = False  # the readers know what was tried last
        self._generation = -1
        self._profile_digest = ""
        self._profile_at = float("-inf")
        self.profile: Profile | None = None
        self.table = b""
        self.failures = 0

    async def run(self) -> None:
        while True:
            self._replica.changed.clear()
            lease = self._replica.lease()
            wait = due_in(self._tried, lease, self._clock() - self._tried_at)
            if wait <= 0:
                await self.send(lease)
                continue
            try:
                async with asyncio.timeout(wait):
                    await self._replica.changed.wait()
            except TimeoutError:
                pass

    async def send(self, lease: Lease) -> None:
        """One attempt; never raises for Redis."""
        again = not self._heard or self._generation != self._link.generation
        announce = again or announces(self._tried, lease)
        self._tried, self._tried_at, self._generation = lease, self._clock(), self._link.generation
        try:
            await self._keep_profile(renew=again)
            await self._store.write(lease, announce=announce)
            self._heard = True
        except RedisUnavailable as error:
            if self._heard:
                log.warning("lease_not_sent", extra={"reason": str(error)})
            self._heard = False
            self.failures += 1
        if lease.state == "draining":
            self._replica.drain.told(self._clock())

    async def _keep_profile(self, *, renew: bool) -> None:
        """Write the profile before the first lease that names it; later only see that it is still there."""
        profile = self.profile
        if profile is None:
            return
        now, digest = self._clock(), profile.digest
        renew = renew or digest != self._profile_digest
        if not renew and now - self._profile_at < PERIOD_S:
            return
        if renew or not await self._store.touch_profile(digest, table=bool(self.table)):
            if self.table:
                await self._store.write_table(digest, self.table)
            await self._store.write_profile(profile)
        self._profile_digest, self._profile_at = digest, now
