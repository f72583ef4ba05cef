"""What was sent to a replica whose cache cannot be followed: its prompts' keys, least recently used first to go. Pure.

An engine that keeps the same tokens in the same order forgets about the same prompts, so the capacity is the engine's
own KV size.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

TTL_S: Final = 1800.0
LEAST_KEYS: Final = 4096


class History:
    __slots__ = ("_seen", "capacity")

    def __init__(self, capacity: int = LEAST_KEYS) -> None:
        self.capacity = capacity
        self._seen: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, keys: Sequence[int], now: float) -> None:
        """A prompt went there. Its tail is the first to be forgotten, as in the engine."""
        for key in reversed(keys):
            self._seen[key] = now
            self._seen.move_to_end(key)
        while len(self._seen) > self.capacity:
            self._seen.popitem(last=False)

    def depth(self, keys: Sequence[int], now: float) -> int:
        """How many leading keys were sent there not too long ago."""
        oldest = now - TTL_S
        for count, key in enumerate(keys):
            if self._seen.get(key, oldest) <= oldest:
                return count
        return len(keys)

    def clear(self) -> None:
        """A new engine process holds nothing."""
        self._seen.clear()
