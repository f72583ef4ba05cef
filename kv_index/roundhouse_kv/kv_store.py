"""KV log and snapshots of one service in Redis: writer for the agent, reader for the gateway's feed."""

from roundhouse_kv.kv_wire import KvBatch, KvSnapshot
from roundhouse_kv.names import ServiceKeys
from roundhouse_kv.redis_link import RedisLink

SNAPSHOT_TTL_S = 600
LOG_KEPT_MS = 120_000

StreamId = tuple[int, int]


class KvLogWriter:
    """Every method raises `RedisUnavailable` when Redis does not answer in time."""

    def __init__(self, link: RedisLink, keys: ServiceKeys) -> None:
        self._link = link
        self._keys = keys

    async def append(self, batch: KvBatch) -> StreamId:
        """Append and trim what is older than two minutes (by the server's clock). Returns the stream id."""
        raise NotImplementedError

    async def write_snapshot(self, snapshot: KvSnapshot) -> None:
        """Store for ten minutes. Write it *after* the batches that it covers."""
        raise NotImplementedError

    async def touch(self, pod_uid: str) -> bool:
        """Refresh the snapshot's time to live; False when it is gone and must be written again."""
        raise NotImplementedError
