"""What the leading operator follows in Redis: leases of all services, demand, and whether the catalogue is still
there."""

import time
from collections.abc import Callable, Iterable, Mapping

from roundhouse_kv.names import Installation
from roundhouse_kv.records import Demand, GatewayBeat, Lease
from roundhouse_kv.redis_link import RedisLink


class OperatorFeed:
    """Polls once a second. ``on_change(service_key)``: a replica's state, epoch or lease presence changed.

    ``on_republish()``: the catalogue in Redis is not the one given to `expect`, or the server is a new one.
    Values stay as they were while Redis is unhealthy; ``link.healthy`` tells.
    """

    def __init__(
        self,
        link: RedisLink,
        installation: Installation,
        *,
        on_change: Callable[[str], None],
        on_republish: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        period_s: float = 1.0,
    ) -> None:
        self._link = link
        self._names = installation
        self._on_change = on_change
        self._on_republish = on_republish
        self._clock = clock
        self._period = period_s

    def follow(self, service_key: str, replica_uids: Iterable[str]) -> None:
        """Read these replicas' leases from the next poll on; replaces the service's former set."""
        raise NotImplementedError

    def forget(self, service_key: str) -> None:
        raise NotImplementedError

    def expect(self, stamp: tuple[int, int] | None) -> None:
        """(term, version) of the catalogue that this operator has published last; None: it is not the writer."""
        raise NotImplementedError

    def leases(self, service_key: str) -> Mapping[str, Lease]:
        """By replica uid. A lease missing while Redis is settled disappears here; it means unknown, not dead."""
        raise NotImplementedError

    def demand(self, service_key: str) -> Mapping[int, Demand]:
        """By gateway incarnation."""
        raise NotImplementedError

    @property
    def gateways(self) -> Mapping[int, GatewayBeat]:
        raise NotImplementedError

    async def run(self) -> None:
        """Poll until cancelled."""
        raise NotImplementedError
