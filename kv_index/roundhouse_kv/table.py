"""The mirror's table: prefix keys, each beside the masks of who holds it, in one numpy array, by linear probing.

A place is ``1 + words`` cells, the key and its masks, so that reading one key costs one miss of the cache. Key 0 marks
a place never used. A mask of 0 is a tombstone that only the same key revives, so probe chains never break. Many keys at
once go through vectorised numpy; single ones through a memoryview of the same array, where reading a number costs tens
of nanoseconds instead of the hundreds that numpy's scalars take.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roundhouse_kv.kv_wire import Keys

Places = NDArray[np.int64]


class KeyTable:
    """Knows nothing of pods. ``used`` counts occupied places, tombstones included."""

    def __init__(self, capacity: int, words: int) -> None:
        self.capacity = capacity
        self.words = words
        self.used = 0
        self.cells: NDArray[np.uint64] = np.zeros((capacity, 1 + words), np.uint64)
        self.keys: Keys = self.cells[:, 0]
        self.masks: NDArray[np.uint64] = self.cells[:, 1:]
        self.view = memoryview(self.cells.reshape(-1).data)
        self._size = len(self.view)

    def mask_of(self, key: int) -> int:
        """Who holds ``key``; 0 when absent."""
        view, size, step = self.view, self._size, 1 + self.words
        at = key % self.capacity * step
        while (found := view[at]) != key:
            if not found:
                return 0
            at = at + step if at + step < size else 0
        return view[at + 1] if step == 2 else self._wide(at)

    def walk(self, keys: Sequence[int], base: int, held: int, ends: list[tuple[int, int]]) -> int:
        """`mask_of` one by one from ``base`` on: appends each (index, who of ``held`` ends there); who holds all."""
        view, capacity, size, step = self.view, self.capacity, self._size, 1 + self.words
        for index in range(base, len(keys)):
            key = keys[index]
            at = key % capacity * step
            while (found := view[at]) != key:
                if not found:
                    ends.append((index, held))
                    return 0
                at = at + step if at + step < size else 0
            lost = held & ~(view[at + 1] if step == 2 else self._wide(at))
            if lost:
                ends.append((index, lost))
                held ^= lost
                if not held:
                    break
        return held

    def _wide(self, at: int) -> int:
        """The masks behind the key at cell ``at`` as one number."""
        mask = 0
        for word in range(at + self.words, at, -1):
            mask = mask << 64 | self.view[word]
        return mask

    def place(self, key: int, claim: bool) -> int:
        """Where one key lies, -1 when absent; ``claim`` takes a free place for it instead."""
        view, capacity, step = self.view, self.capacity, 1 + self.words
        at = key % capacity
        while (found := view[at * step]) != key:
            if not found:
                if not claim:
                    return -1
                view[at * step] = key
                self.used += 1
                return at
            at = at + 1 if at + 1 < capacity else 0
        return at

    def find(self, wanted: Keys) -> Places:
        """Places of many keys, -1 where absent."""
        places = np.full(len(wanted), -1, np.int64)
        open_ = np.arange(len(wanted))
        at = (wanted % np.uint64(self.capacity)).astype(np.int64)
        while len(open_):
            found = self.keys[at]
            hit = found == wanted
            places[open_[hit]] = at[hit]
            go = ~hit & (found != 0)
            open_, wanted, at = open_[go], wanted[go], self._after(at[go])
        return places

    def claim(self, wanted: Keys) -> Places:
        """Places of many keys, taken where absent: write, read back, and who was overwritten goes on."""
        places = np.empty(len(wanted), np.int64)
        open_ = np.arange(len(wanted))
        at = (wanted % np.uint64(self.capacity)).astype(np.int64)
        while len(open_):
            found = self.keys[at]
            empty = found == 0
            if empty.any():
                self.keys[at[empty]] = wanted[empty]
                self.used += len(np.unique(at[empty]))
                found = self.keys[at]
            hit = found == wanted
            places[open_[hit]] = at[hit]
            go = ~hit
            open_, wanted, at = open_[go], wanted[go], self._after(at[go])
        return places

    def _after(self, at: Places) -> Places:
        at = at + 1
        at[at == self.capacity] = 0
        return at

    def alive(self) -> Places:
        """Places whose mask is not 0."""
        return np.flatnonzero(self.masks.any(axis=1))
