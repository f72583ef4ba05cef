"""KV events in vLLM's wire format (msgpack maps), what of them can be replayed, and a snapshot of the whole cache.

Batches are numbered from 0. The snapshot is kept from the published batches themselves, so it is exact for the last
sequence number; a dict keeps insertion order and blocks are stored after their parents and evicted before them, so its
order is parents first.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from roundhouse_sim.cache import Change, Removed, Stored
from roundhouse_sim.job import Job
from roundhouse_sim.tokens import to_ids

NOTHING_YET: Final = -1

_encode = msgspec.msgpack.Encoder().encode


class Block(NamedTuple):
    key: int
    parent: int | None
    tokens: str
    salt: str


class EventLog:
    """``record`` turns one step's changes into one batch; ``since`` and ``snapshot`` serve those who came late."""

    def __init__(self, block_size: int, buffer_steps: int) -> None:
        self.seq = NOTHING_YET
        self._block_size = block_size
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._present: dict[int, Block] = {}

    def record(self, changes: Sequence[Change], now: float) -> bytes:
        """The payload to publish under the new ``seq``."""
        events: list[dict[str, object]] = []
        for change in changes:
            if isinstance(change, Stored):
                blocks = list(self._blocks(change))
                self._present.update((block.key, block) for block in blocks)
                events.append(self._stored(blocks))
            elif isinstance(change, Removed):
                for key in change.keys:
                    del self._present[key]
                    events.append({"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU", "group_idx": 0})
            else:
                self._present.clear()
                events.append({"type": "AllBlocksCleared"})
        self.seq += 1
        payload = _encode([now, events, 0])
        self._buffer.append((self.seq, payload))
        return payload

    def since(self, seq: int) -> list[tuple[int, bytes]]:
        """Buffered batches from ``seq`` on."""
        return [item for item in self._buffer if item[0] >= seq]

    def snapshot(self, now: float) -> bytes:
        """One batch that stores everything present, parents first."""
        return _encode([now, [self._stored(run) for run in _runs(self._present.values())], 0])

    def _blocks(self, change: Stored) -> Iterator[Block]:
        job = change.owner
        assert isinstance(job, Job)
        parent = job.keys[change.start - 1] if change.start else None
        for index in range(change.start, change.stop):
            key = job.keys[index]
            yield Block(key, parent, job.tokens(index * self._block_size, (index + 1) * self._block_size), job.salt)
            parent = key

    def _stored(self, blocks: Sequence[Block]) -> dict[str, object]:
        return {
            "type": "BlockStored",
            "block_hashes": [block.key for block in blocks],
            "parent_block_hash": blocks[0].parent,
            "token_ids": to_ids("".join(block.tokens for block in blocks)),
            "block_size": self._block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [[block.salt] if block.salt and block.parent is None else None for block in blocks],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }


def _runs(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Consecutive blocks of which each is the next one's parent."""
    run: list[Block] = []
    for block in blocks:
        if run and block.parent != run[-1].key:
            yield run
            run = []
        run.append(block)
    if run:
        yield run
