"""The second tier: what the cache evicts goes to host memory and comes back by a copy. Pure bookkeeping, no tensors.

What is decided here (`Move`s) is carried out before the step's arithmetic and in the same order: an evicted block is
copied out before anything overwrites it, and a slot is reused only behind the copy that reads it.
"""

from collections import OrderedDict
from dataclasses import dataclass

from roundhouse_torch.kvcache.chain import wire_hash
from roundhouse_torch.kvcache.events import BlockRemoved, BlockStored, CacheEvent

MEDIUM = "CPU"


@dataclass(frozen=True, slots=True)
class Move:
    """Copy between a ``block`` of the cache and a ``slot`` of the host's memory."""

    block: int
    slot: int
    to_host: bool


class HostTier:
    """``slots`` blocks, the least recently stored given up first. ``moves`` collects what is to be copied.

    A name that was computed anew while no block was free to load it into stays here as well.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.moves: list[Move] = []
        self._free = list(range(slots - 1, -1, -1))
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()

    @property
    def contents(self) -> frozenset[bytes]:
        return frozenset(self._slot_of)

    def store(self, name: bytes, block: int) -> list[CacheEvent]:
        """``block`` is about to be overwritten."""
        events: list[CacheEvent] = []
        if name in self._slot_of:
            self._slot_of.move_to_end(name)
            return events
        if not self._free and self._slot_of:
            victim, slot = self._slot_of.popitem(last=False)
            self._free.append(slot)
            events.append(BlockRemoved(block_hashes=[wire_hash(victim)], medium=MEDIUM))
        if self._free:  # else every slot is claimed for a copy back in this very step
            slot = self._free.pop()
            self._slot_of[name] = slot
            self.moves.append(Move(block, slot, to_host=True))
            events.append(stored_on_host([wire_hash(name)]))
        return events

    def claim(self, name: bytes) -> int | None:
        """The slot that holds ``name``, which is no longer in this tier; `load` it next."""
        return self._slot_of.pop(name, None)

    def load(self, name: bytes, slot: int, block: int) -> CacheEvent:
        """``block``, taken in the meantime, gets the content of ``slot``."""
        self.moves.append(Move(block, slot, to_host=False))
        self._free.append(slot)
        return BlockRemoved(block_hashes=[wire_hash(name)], medium=MEDIUM)

    def clear(self) -> None:
        """Forget everything, and what was to be copied."""
        self._free.extend(self._slot_of.values())
        self._slot_of.clear()
        self.moves.clear()

    def drain_moves(self) -> list[Move]:
        moves, self.moves = self.moves, []
        return moves


def stored_on_host(hashes: list[int]) -> BlockStored:
    """As vLLM announces blocks of a second tier: the hash alone, since the first tier's event told what it holds."""
    return BlockStored(
        block_hashes=hashes, parent_block_hash=None, token_ids=[], block_size=0, medium=MEDIUM, extra_keys=[]
    )
