"""Demand per service and gateway, and the gateways' heartbeats; small records with a TTL of five seconds."""

import logging
from collections.abc import Iterable, Mapping

from roundhouse_kv.errors import WireError
from roundhouse_kv.names import Installation, ServiceKeys
from roundhouse_kv.records import Demand, GatewayBeat, R, decode_record, encode_record
from roundhouse_kv.redis_link import RedisLink

log = logging.getLogger(__name__)

DEMAND_TTL_S = 5
_SCAN_COUNT = 1000


class DemandStore:
    """Every method raises `RedisUnavailable` when Redis does not answer in time."""

    def __init__(self, link: RedisLink, installation: Installation) -> None:
        self._link = link
        self._names = installation

    async def tell(self, beat: GatewayBeat, demands: Mapping[ServiceKeys, Demand]) -> None:
        """That one gateway is alive, and what it holds and runs for each service; each second, also when zero."""
        records: list[tuple[str, bytes]] = [(self._names.gateway(beat.incarnation), encode_record(beat))]
        records += [(keys.demand(beat.incarnation), encode_record(demand)) for keys, demand in demands.items()]
        await self._link.bare.ask(*(("SET", key, record, "EX", str(DEMAND_TTL_S)) for key, record in records))

    async def read(self, keys: ServiceKeys, incarnations: Iterable[int] | None = None) -> dict[int, Demand]:
        """Demand of one service by gateway; asks for the gateways alive when they are not given."""
        wanted = list(await self.gateways() if incarnations is None else incarnations)
        if not wanted:
            return {}
        values = await self._link.ask(self._link.client.mget([keys.demand(each) for each in wanted]))
        return _parse(Demand, dict(zip(wanted, values, strict=True)))

    async def read_all(
        self, services: Iterable[ServiceKeys], incarnations: Iterable[int]
    ) -> dict[ServiceKeys, dict[int, Demand]]:
        """Demand of many services in one round trip."""
        wanted, gateways = list(services), list(incarnations)
        if not wanted or not gateways:
            return {keys: {} for keys in wanted}
        pipe = self._link.client.pipeline(transaction=False)
        for keys in wanted:
            pipe.mget([keys.demand(each) for each in gateways])
        answers = await self._link.ask(pipe.execute())
        return {
            keys: _parse(Demand, dict(zip(gateways, values, strict=True)))
            for keys, values in zip(wanted, answers, strict=True)
        }

    async def gateways(self) -> dict[int, GatewayBeat]:
        """Gateways alive, by incarnation."""
        client = self._link.client
        names: set[bytes] = set()
        cursor = 0
        while True:
            cursor, found = await self._link.ask(
                client.scan(cursor, match=self._names.gateways_pattern, count=_SCAN_COUNT)
            )
            names.update(found)
            if not cursor:
                break
        if not names:
            return {}
        values = await self._link.ask(client.mget(list(names)))
        beats = _parse(GatewayBeat, dict(enumerate(values)))
        return {beat.incarnation: beat for beat in beats.values()}


def _parse(kind: type[R], values: Mapping[int, bytes | None]) -> dict[int, R]:
    records: dict[int, R] = {}
    for number, data in values.items():
        if data is None:
            continue
        try:
            records[number] = decode_record(kind, data)
        except WireError as error:
            log.warning("record_unreadable", extra={"kind": kind.__name__, "error": str(error)})
    return records
