"""Demand per service and gateway, and the gateways' heartbeats; small records with a TTL of five seconds."""

from roundhouse_kv.names import Installation, ServiceKeys
from roundhouse_kv.records import Demand, GatewayBeat
from roundhouse_kv.redis_link import RedisLink

DEMAND_TTL_S = 5


class DemandStore:
    """Every method raises `RedisUnavailable` when Redis does not answer in time."""

    def __init__(self, link: RedisLink, installation: Installation) -> None:
        self._link = link
        self._names = installation

    async def write(self, keys: ServiceKeys, incarnation: int, demand: Demand) -> None:
        raise NotImplementedError

    async def read(self, keys: ServiceKeys) -> dict[int, Demand]:
        """Demand of one service by gateway incarnation."""
        raise NotImplementedError

    async def beat(self, beat: GatewayBeat) -> None:
        raise NotImplementedError

    async def gateways(self) -> dict[int, GatewayBeat]:
        """Gateways alive, by incarnation."""
        raise NotImplementedError
