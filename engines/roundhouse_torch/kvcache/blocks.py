"""Which block is free, cached or used. Pure bookkeeping over block numbers, no tensors.

Every block is in exactly one state, and ``free + cached + used = total``:

* *free*: no content of value.
* *cached*: nobody uses it, but it holds named content that a later request may take. Evicted in order of last use.
* *used*: referenced by at least one sequence; named too once it is full and the prefix cache is on.

A name belongs to at most one block. A sequence releases its blocks last one first, so a block is always evicted
before its parent, and what is cached stays closed under "parent of".
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from roundhouse_torch.kvcache.chain import wire_hash
from roundhouse_torch.kvcache.events import AllBlocksCleared, BlockRemoved, CacheEvent
from roundhouse_torch.kvcache.host import HostTier


class BlockCounts(NamedTuple):
    free: int
    cached: int
    used: int


class BlockPool:
    """Hands out, names, shares and takes back blocks. ``events`` collects what changed, in order.

    ``host``: where evicted content goes.
    """

    def __init__(self, total: int, host: HostTier | None = None) -> None:
        self.total = total
        self.host = host
        self.events: list[CacheEvent] = []
        self._free = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * total
        self._names: list[bytes | None] = [None] * total
        self._block_of: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Blocks that `take` can still give."""
        return len(self._free) + len(self._cached)

    @property
    def counts(self) -> BlockCounts:
        return BlockCounts(len(self._free), len(self._cached), self.total - self.available)

    @property
    def contents(self) -> frozenset[bytes]:
        """Names of everything that can be shared."""
        return frozenset(self._block_of)

    def __contains__(self, name: bytes) -> bool:
        return name in self._block_of

    def match(self, names: Iterable[bytes]) -> list[int]:
        """Blocks with the leading ones of ``names``."""
        held = self._block_of
        return [held[name] for name in takewhile(held.__contains__, names)]

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` nobody uses: sharing them makes as many less available."""
        references = self._references
        return [references[block] for block in blocks].count(0)

    def take(self) -> int:
        """A block with no content, at the cost of the least recently used cached one. Needs ``available`` > 0."""
        block = self._free.pop() if self._free else self._evict()
        self._references[block] = 1
        return block

    def restore(self, name: bytes) -> int | None:
        """A block with the content of ``name`` out of the host's memory, if it is there. Needs ``available`` > 0."""
        slot = self.host.claim(name) if self.host is not None else None
        if self.host is None or slot is None:
            return None
        block = self.take()
        self.events.append(self.host.load(name, slot, block))
        self._block_of[name] = block
        self._names[block] = name
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """One more user of each of these, which are named."""
        references, cached = self._references, self._cached
        for block in blocks:
            if references[block] == 0:
                del cached[block]
            references[block] += 1

    def name(self, block: int, name: bytes) -> int:
        """Name a full block that the caller uses. When another block has that name already the caller gets that one.

        The caller's own block is then given back: equal content is kept once.
        """
        holder = self._block_of.setdefault(name, block)
        if holder == block:
            self._names[block] = name
        else:
            self.share((holder,))
            self.release((block,))
        return holder

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one use of each, in the order in which they shall be evicted."""
        for block in blocks:
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._names[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def clear(self) -> bool:
        """Forget all content. False, and nothing is done, while any block is used."""
        if self.available < self.total:
            return False
        for block in self._cached:
            self._names[block] = None
        self._free.extend(reversed(self._cached))
        self._cached.clear()
        self._block_of.clear()
        if self.host is not None:
            self.host.clear()
        self.events.append(AllBlocksCleared())
        return True

    def drain_events(self) -> list[CacheEvent]:
        events, self.events = self.events, []
        return events

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        name = self._names[block]
        assert name is not None
        self._names[block] = None
        del self._block_of[name]
        self.events.append(BlockRemoved(block_hashes=[wire_hash(name)]))
        if self.host is not None:
            self.events += self.host.store(name, block)
        return block
