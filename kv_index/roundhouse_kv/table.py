"""The mirror's table: prefix keys and the masks of who holds them, in two numpy arrays, by linear probing.

Key 0 marks a place never used. A mask of 0 is a tombstone that only the same key revives, so probe chains never
break. Many keys at once go through vectorised numpy; single ones through memoryviews of the same arrays, where
reading a number costs tens of nanoseconds instead of the hundreds that numpy's scalars take.
"""

from collections.abc import Callable

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
        self.keys: Keys = np.zeros(capacity, np.uint64)
        self.masks: NDArray[np.uint64] = np.zeros(capacity * words, np.uint64)
        self.key_view = memoryview(self.keys.data)
        self.mask_view = memoryview(self.masks.data)
        self.mask_of = self._reader()

    def _reader(self) -> Callable[[int], int]:
        """A closure over the views: mask of a key, 0 when absent."""
        keys, masks, capacity, words = self.key_view, self.mask_view, self.capacity, self.words

        def one_word(key: int) -> int:
            at = key % capacity
            while (found := keys[at]) != key:
                if not found:
                    return 0
                at = at + 1 if at + 1 < capacity else 0
            mask: int = masks[at]
            return mask

        def many_words(key: int) -> int:
            at = key % capacity
            while (found := keys[at]) != key:
                if not found:
                    return 0
                at = at + 1 if at + 1 < capacity else 0
            mask = 0
            for word in range(words - 1, -1, -1):
                mask = mask << 64 | masks[at * words + word]
            return mask

        return one_word if words == 1 else many_words

    def place(self, key: int, claim: bool) -> int:
        """Where one key lies, -1 when absent; ``claim`` takes a free place for it instead."""
        keys, capacity = self.key_view, self.capacity
        at = key % capacity
        while (found := keys[at]) != key:
            if not found:
                if not claim:
                    return -1
                keys[at] = key
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
        return np.flatnonzero(self.masks.reshape(-1, self.words).any(axis=1))
