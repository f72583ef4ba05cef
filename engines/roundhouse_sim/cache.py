"""LRU cache of prefix blocks in one pool with the private blocks of running sequences.

A block is known by its chained key, so a key's presence implies that of all keys before it: holders pin whole prefixes
and release them tail first, hence eviction is tail first too. Blocks are ``pinned`` (a running sequence uses them),
``idle`` (kept for reuse, evicted oldest first) or private (reserved for tokens not computed yet; only counted).
"""

from collections import OrderedDict
from collections.abc import Sequence as Keys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks ``start`` to ``stop`` of ``owner``'s keys became reusable."""

    owner: object
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Removed:
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


Change = Stored | Removed | Cleared


class PrefixCache:
    """``blocks`` is the pool's size. With ``record`` every change is kept until `take_changes`."""

    def __init__(self, blocks: int, *, record: bool = False) -> None:
        self.blocks = blocks
        self.private = 0
        self.pinned: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self._record = record
        self._changes: list[Change] = []

    @property
    def used(self) -> int:
        """Blocks that running sequences hold; idle ones are free for the taking."""
        return len(self.pinned) + self.private

    def match(self, keys: Keys[int]) -> int:
        """How many leading ``keys`` are present."""
        count = 0
        for key in keys:
            if key not in self.pinned and key not in self.idle:
                break
            count += 1
        return count

    def admit(self, matched: Keys[int], private: int) -> bool:
        """Pin the ``matched`` keys and reserve ``private`` blocks, evicting idle ones. False, and unchanged, if it
        does not fit."""
        reused = sum(1 for key in matched if key in self.idle)
        if self.used + reused + private > self.blocks:
            return False
        for key in matched:
            self._pin(key)
        self.private += private
        self._evict(self.used + len(self.idle) - self.blocks)
        return True

    def commit(self, owner: object, keys: Keys[int], start: int, stop: int) -> None:
        """Private blocks ``start`` to ``stop`` of ``owner`` hold these keys now. A key that another sequence stored in
        the meantime is shared and its private block given back."""
        fresh = start
        for index in range(start, stop):
            key = keys[index]
            self.private -= 1
            if key in self.pinned or key in self.idle:
                self._stored(owner, fresh, index)
                fresh = index + 1
                self._pin(key)
            else:
                self.pinned[key] = 1
        self._stored(owner, fresh, stop)

    def release(self, keys: Keys[int], private: int) -> None:
        """Unpin ``keys`` and give back ``private`` blocks."""
        self.private -= private
        for key in reversed(keys):
            pins = self.pinned[key] - 1
            if pins:
                self.pinned[key] = pins
            else:
                del self.pinned[key]
                self.idle[key] = None

    def clear(self) -> bool:
        """Forget everything; False, and unchanged, while sequences run."""
        if self.used:
            return False
        self.idle.clear()
        if self._record:
            self._changes.append(Cleared())
        return True

    def take_changes(self) -> list[Change]:
        changes, self._changes = self._changes, []
        return changes

    def _pin(self, key: int) -> None:
        pins = self.pinned.get(key, 0)
        if not pins:
            del self.idle[key]
        self.pinned[key] = pins + 1

    def _evict(self, count: int) -> None:
        if count <= 0:
            return
        keys = tuple(self.idle.popitem(last=False)[0] for _ in range(count))
        if self._record:
            self._changes.append(Removed(keys))

    def _stored(self, owner: object, start: int, stop: int) -> None:
        if self._record and stop > start:
            self._changes.append(Stored(owner, start, stop))
