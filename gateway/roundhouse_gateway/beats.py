"""What a gateway tells others once a second: that it is alive, and for each service what it runs."""

import asyncio
from collections.abc import Callable

from roundhouse_kv.demand_store import DemandStore
from roundhouse_kv.errors import RedisUnavailable
from roundhouse_kv.records import Demand, GatewayBeat

from roundhouse_gateway.fleet import Fleet, Service

PERIOD_S = 1.0


class Beats:
    """``missed`` counts rounds that Redis did not take."""

    def __init__(
        self,
        store: DemandStore,
        beat: GatewayBeat,
        fleet: Fleet,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._beat = beat
        self._fleet = fleet
        self._clock = clock
        self.missed = 0

    async def run(self) -> None:
        """Until cancelled; a Redis that is away ends the round, not the task."""
        while True:
            try:
                await self._round()
            except RedisUnavailable:
                self.missed += 1
            await asyncio.sleep(PERIOD_S)

    async def _round(self) -> None:
        services = self._fleet.services.values()
        await self._store.tell(self._beat, {service.view.keys: self._demand(service) for service in services})

    def _demand(self, service: Service) -> Demand:
        last = service.last_request_at
        age_ms = None if last is None else round((self._clock() - last) * 1000)
        return Demand(held=0, in_flight=service.in_flight, last_request_age_ms=age_ms)
