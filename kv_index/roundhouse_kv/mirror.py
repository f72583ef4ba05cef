"""A gateway's copy of which pod holds which prefix key: written in bulk, read as scalars.

A pod's number ("slot") is its bit in the masks of a `KeyTable`, one 64-bit word per 64 pods. A table that gets full
is rebuilt at half load, without its tombstones, either in place or ahead of time by a thread (`rebuilt`, `adopt`)
while reads go on.

A look-up asks for a chain of keys, and pods hold prefixes of chains (engines evict tails first). So it checks the
last key first, then gallops and bisects to each place where a pod's prefix ends, and goes on one by one after three
such places. A hole in a pod's chain can make it look deeper than it is; the truth check against the engine's own
numbers catches that.

Dropping a pod clears its bit in ``live``; its column is swept before the slot is given to another pod.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from roundhouse_kv.kv_wire import Keys
from roundhouse_kv.table import KeyTable

MAX_LOAD: Final = 0.65
REBUILD_LOAD: Final = 0.5
MIN_CAPACITY: Final = 4096
SCALAR_KEYS: Final = 16
_REBUILD_SLICE: Final = 1 << 16
_CHANGES_BEFORE_LINEAR: Final = 3
_FIRST_STEP: Final = 4


@dataclass(frozen=True, slots=True)
class Change:
    """Keys that the pod in ``slot`` has gained (``add``) or lost."""

    slot: int
    add: bool
    keys: Keys


class Mirror:
    """Presence of keys per slot. Every method but `rebuilt` belongs to one thread."""

    def __init__(self, expected_keys: int = 0) -> None:
        self._table = KeyTable(_capacity_for(expected_keys), 1)
        self._live = 0
        self._free: list[int] = list(range(63, -1, -1))
        self._dirty: list[int] = []
        self._writes = 0

    @property
    def nbytes(self) -> int:
        return self._table.cells.nbytes

    @property
    def capacity(self) -> int:
        return self._table.capacity

    def take(self) -> int:
        """A slot that no key carries. It shows in look-ups only after `show`."""
        if not self._free and self._dirty:
            self._sweep()
        if not self._free:
            words = self._table.words
            self._replace(self._copy(self._table.capacity, words + 1))
            self._free = list(range(64 * words + 63, 64 * words - 1, -1))
        return self._free.pop()

    def show(self, slot: int) -> None:
        self._live |= 1 << slot

    def drop(self, slot: int) -> None:
        """At once for readers; the column is swept later."""
        self._live &= ~(1 << slot)
        self._dirty.append(slot)

    def apply(self, changes: Sequence[Change]) -> None:
        """In order: the last change of a (slot, key) wins."""
        size = sum(len(change.keys) for change in changes)
        if not size:
            return
        self._writes += 1
        gained = sum(len(change.keys) for change in changes if change.add)
        if (capacity := self.wanted_capacity(gained)) is not None:
            self._replace(self._copy(capacity, self._table.words))
        if size <= SCALAR_KEYS:
            self._apply_scalars(changes)
        else:
            self._apply_arrays(changes)

    def lookup(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """(depth, mask) pairs: who is in ``mask`` holds just the first ``depth`` keys. Depths rise; 0 is left out."""
        if not keys or not self._live:
            return []
        table = self._table
        held = table.mask_of(keys[0]) & self._live
        ends: list[tuple[int, int]] = []
        last = len(keys) - 1
        base = changes = 0
        while held and base < last:
            if table.mask_of(keys[last]) & held == held:
                break
            if changes == _CHANGES_BEFORE_LINEAR:
                held = table.walk(keys, base + 1, held, ends)
                break
            changes += 1
            base = _next_change(table, keys, base, held)
            still = table.mask_of(keys[base]) & held
            if still != held:
                ends.append((base, held & ~still))
                held = still
        if held:
            ends.append((len(keys), held))
        return ends

    def wanted_capacity(self, extra: int) -> int | None:
        """The capacity to rebuild to before ``extra`` more keys come; None when there is room."""
        table = self._table
        if table.used + extra <= table.capacity * MAX_LOAD:
            return None
        return _capacity_for(len(table.alive()) + extra)

    def rebuilt(self, capacity: int) -> "Rebuilt":
        """A copy with another capacity. May run in another thread while this one goes on reading."""
        return Rebuilt(self._copy(capacity, self._table.words), self._table, self._writes)

    def adopt(self, rebuilt: "Rebuilt") -> bool:
        """Switch to a copy; False when something was written since and the copy is of no use."""
        if rebuilt.source is not self._table or rebuilt.writes != self._writes:
            return False
        self._table = rebuilt.table
        return True

    def _copy(self, capacity: int, words: int) -> KeyTable:
        """Without tombstones; in slices, so that a thread doing it gives others their turn."""
        old, new = self._table, KeyTable(capacity, words)
        alive = old.alive()
        for start in range(0, len(alive), _REBUILD_SLICE):
            part = alive[start : start + _REBUILD_SLICE]
            new.masks[new.claim(old.keys[part]), : old.words] = old.masks[part]
        return new

    def _replace(self, table: KeyTable) -> None:
        self._table = table

    def _sweep(self) -> None:
        self._writes += 1
        keep = [0xFFFFFFFFFFFFFFFF] * self._table.words
        for slot in self._dirty:
            keep[slot >> 6] &= ~(1 << (slot & 63))
        for word, bits in enumerate(keep):
            if bits != 0xFFFFFFFFFFFFFFFF:
                self._table.masks[:, word] &= np.uint64(bits)
        self._free, self._dirty = self._dirty, []

    def _apply_scalars(self, changes: Sequence[Change]) -> None:
        table = self._table
        view, step = table.view, 1 + table.words
        for change in changes:
            word, bit = 1 + (change.slot >> 6), 1 << (change.slot & 63)
            for key in change.keys.tolist():
                place = table.place(key or 1, change.add)
                if place < 0:
                    continue
                at = place * step + word
                view[at] = view[at] | bit if change.add else view[at] & ~bit

    def _apply_arrays(self, changes: Sequence[Change]) -> None:
        """One claim and one find for the whole lot, then the last change of each (place, slot)."""
        table = self._table
        keys = np.concatenate([change.keys for change in changes]).astype(np.uint64, copy=False)
        if not keys.all():
            keys = np.where(keys == 0, np.uint64(1), keys)
        lengths = [len(change.keys) for change in changes]
        slots = np.repeat(np.array([change.slot for change in changes], np.int64), lengths)
        adds = np.repeat(np.array([change.add for change in changes]), lengths)
        places = np.empty(len(keys), np.int64)
        places[adds] = table.claim(keys[adds])
        places[~adds] = table.find(keys[~adds])
        known = places >= 0
        places, slots, adds = places[known], slots[known], adds[known]
        if len(changes) > 1:
            pairs = (places * (64 * table.words) + slots)[::-1]
            _, newest = np.unique(pairs, return_index=True)
            newest = len(pairs) - 1 - newest
            places, slots, adds = places[newest], slots[newest], adds[newest]
        at = places * (1 + table.words) + 1 + (slots >> 6)
        bits = np.uint64(1) << (slots & 63).astype(np.uint64)
        cells = table.cells.reshape(-1)
        np.bitwise_or.at(cells, at[adds], bits[adds])
        np.bitwise_and.at(cells, at[~adds], ~bits[~adds])


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A copy of a mirror's table, and which state of which table it is a copy of."""

    table: KeyTable
    source: KeyTable
    writes: int


def _capacity_for(keys: int) -> int:
    return max(MIN_CAPACITY, int(keys / REBUILD_LOAD) + 1)


def _next_change(table: KeyTable, keys: Sequence[int], base: int, held: int) -> int:
    """The first index after ``base`` whose key not all of ``held`` have; the last key is known to be such."""
    low, high, step = base, len(keys) - 1, _FIRST_STEP
    while low + step < high and table.mask_of(keys[low + step]) & held == held:
        low += step
        step *= 2
    high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        if table.mask_of(keys[middle]) & held == held:
            low = middle
        else:
            high = middle
    return high
