"""KV log and snapshots in Redis: writer for the agent, reader for the gateway's feed.

The log is one stream per service. It keeps about two minutes (and goes when nobody wrote for ten); who needs more takes
the pods' snapshots, each of which says up to where in the log it reaches. A stream that was lost (Redis emptied,
failover) starts anew, perhaps at smaller ids than a reader has seen; `KvLogReader.check` finds that out.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from redis.exceptions import ResponseError

from roundhouse_kv.errors import RedisUnavailable, WireError
from roundhouse_kv.kv_wire import KvBatch, KvSnapshot, decode_batch, decode_snapshot, encode_batch, encode_snapshot
from roundhouse_kv.names import ServiceKeys
from roundhouse_kv.redis_link import RedisLink

log = logging.getLogger(__name__)

SNAPSHOT_TTL_S: Final = 600
LOG_KEPT_MS: Final = 120_000
LOG_TTL_S: Final = 600
LOG_REFRESH_MS: Final = 60_000
READ_COUNT: Final = 256
_FIELD: Final = b"b"

StreamId = tuple[int, int]
START: Final[StreamId] = (0, 0)


class KvLogWriter:
    """Every method raises `RedisUnavailable` when Redis does not answer in time.

    A batch whose append failed may be in the log or not: append the same one again (readers skip what they have), or
    write a snapshot that covers it before going on.
    """

    def __init__(self, link: RedisLink, keys: ServiceKeys) -> None:
        self._link = link
        self._keys = keys
        self._last_ms = 0
        self._refreshed_ms = 0

    async def append(self, batch: KvBatch) -> StreamId:
        """Append, and trim what is older than two minutes by the server's own clock. Returns the stream id."""
        pipe = self._link.client.pipeline(transaction=False)
        pipe.xadd(
            self._keys.kv_log,
            {_FIELD: encode_batch(batch)},
            minid=str(max(0, self._last_ms - LOG_KEPT_MS)),
            approximate=True,
        )
        refresh = self._last_ms - self._refreshed_ms >= LOG_REFRESH_MS or not self._last_ms
        if refresh:
            pipe.expire(self._keys.kv_log, LOG_TTL_S)
        answers = await self._link.ask(pipe.execute())
        ms, n = _stream_id(answers[0])
        self._last_ms = ms
        if refresh:
            self._refreshed_ms = ms
        return ms, n

    async def write_snapshot(self, snapshot: KvSnapshot) -> None:
        """Store for ten minutes. Write it after the batches that it covers."""
        key = self._keys.kv_snapshot(str(snapshot.pod_uid))
        await self._link.ask(self._link.client.set(key, encode_snapshot(snapshot), ex=SNAPSHOT_TTL_S))

    async def touch(self, pod_uid: str) -> bool:
        """Refresh the snapshot's time to live; False when it is gone and must be written again."""
        return bool(await self._link.ask(self._link.client.expire(self._keys.kv_snapshot(pod_uid), SNAPSHOT_TTL_S)))


class KvLogReader:
    """Follows the logs of many services over one connection of its own. ``positions``: the last id read of each.

    Methods raise `RedisUnavailable`; positions then stay.
    """

    def __init__(self, link: RedisLink, *, block_s: float) -> None:
        self._link = link
        self._block_s = block_s
        self._connection = link.open_bare()
        self.positions: dict[ServiceKeys, StreamId] = {}

    def close(self) -> None:
        self._connection.close()

    async def read(self) -> dict[ServiceKeys, list[KvBatch]]:
        """What has come since the last read; waits up to ``block_s`` for it."""
        names = {keys.kv_log.encode(): keys for keys in self.positions}
        options = ("COUNT", str(READ_COUNT), "BLOCK", str(max(1, int(self._block_s * 1000))))
        [answer] = await self._connection.ask(
            ("XREAD", *options, "STREAMS", *names, *map(_text, self.positions.values())),
            deadline_s=self._block_s + self._link.config.timeout_s,
        )
        found: dict[ServiceKeys, list[KvBatch]] = {}
        for name, entries in answer or ():
            keys = names[name]
            if keys in self.positions and entries:
                self.positions[keys] = _stream_id(entries[-1][0])
                found[keys] = _decode(entries)
        return found

    async def replay(self, keys: ServiceKeys, after: StreamId) -> AsyncIterator[list[KvBatch]]:
        """What lies in the log behind ``after``, up to the position."""
        end = self.positions[keys]
        while after < end:
            [entries] = await self._connection.ask(
                ("XRANGE", keys.kv_log, f"({_text(after)}", _text(end), "COUNT", str(READ_COUNT))
            )
            if not entries:
                return
            yield _decode(entries)
            after = _stream_id(entries[-1][0])

    async def check(self, keys: ServiceKeys) -> bool:
        """False when the log is not the one that was read so far: emptied, replaced or trimmed past the position.

        The position goes back to the start if the log has fallen behind it.
        """
        at = self.positions[keys]
        try:
            info: Mapping[str, Any] = await self._link.ask(self._link.client.xinfo_stream(keys.kv_log))
        except RedisUnavailable as error:
            if not isinstance(error.__cause__, ResponseError):
                raise
            info = {"last-generated-id": b"0-0", "first-entry": None}
        if _stream_id(info["last-generated-id"]) < at:
            self.positions[keys] = START
            return False
        first = info["first-entry"]
        return first is None or at == START or _stream_id(first[0]) <= at


async def read_snapshots(link: RedisLink, keys: ServiceKeys, pod_uids: Iterable[UUID]) -> dict[UUID, KvSnapshot]:
    """Snapshots of these pods; missing, unreadable and wrongly named ones are left out. Raises `RedisUnavailable`."""
    found: dict[UUID, KvSnapshot] = {}
    for uid in pod_uids:
        data = await link.ask(link.client.get(keys.kv_snapshot(str(uid))))
        if data is None:
            continue
        try:
            snapshot = decode_snapshot(data)
        except WireError as error:
            log.warning("snapshot_unreadable", extra={"pod_uid": str(uid), "error": str(error)})
            continue
        if snapshot.pod_uid == uid:
            found[uid] = snapshot
    return found


async def discard_snapshot(link: RedisLink, keys: ServiceKeys, pod_uid: UUID) -> None:
    """Ask the pod's agent for a new one: it sees that its snapshot is gone and mends the log."""
    await link.ask(link.client.unlink(keys.kv_snapshot(str(pod_uid))))


def _decode(entries: Iterable[tuple[bytes, Sequence[bytes]]]) -> list[KvBatch]:
    """An entry is its id, and its fields' names and values in turn."""
    batches: list[KvBatch] = []
    for stream_id, fields in entries:
        try:
            batches.append(decode_batch(fields[1] if fields[0] == _FIELD else b""))
        except WireError as error:
            log.warning("kv_batch_unreadable", extra={"stream_id": stream_id.decode(), "error": str(error)})
    return batches


def _stream_id(data: bytes) -> StreamId:
    ms, _, n = data.partition(b"-")
    return int(ms), int(n)


def _text(stream_id: StreamId) -> str:
    return f"{stream_id[0]}-{stream_id[1]}"
