"""A work queue that coalesces: many reasons to look at a key become one look.

A key is *dirty* from the moment it is added until a worker takes it, and *processing* until the worker is done. A key
added while it is processed becomes dirty again and is handed out once the worker is done, never to two workers at a
time; so whatever happens during a look causes exactly one more look. Failures come back after a wait that doubles per
key, with jitter so that many keys that fail together do not come back together.

`Backlog` holds the rules and takes the time as an argument; `WorkQueue` adds waiting for the next key.
"""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits from the first, doubling, to the longest; ``jitter`` is the share of them that chance takes away."""

    first_s: float = 0.1
    longest_s: float = 300.0
    jitter: float = 0.2

    def wait(self, failures: int, random: Random) -> float:
        """The wait after so many failures in a row."""
        full = min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 60))
        return full * (1.0 - self.jitter * random.random())


@dataclass(slots=True)
class QueueStats:
    """Counters since the start; ``coalesced``: adds that found the key dirty already."""

    added: int = 0
    coalesced: int = 0
    taken: int = 0
    failed: int = 0
    waited_s: float = 0.0


@dataclass(slots=True)
class Backlog:
    """The state of the queue. Every method takes the current time in seconds of one monotonic clock."""

    backoff: Backoff = field(default_factory=Backoff)
    random: Random = field(default_factory=Random)
    stats: QueueStats = field(default_factory=QueueStats)
    _order: deque[str] = field(default_factory=deque)
    _dirty: dict[str, float] = field(default_factory=dict)
    _processing: set[str] = field(default_factory=set)
    _failures: dict[str, int] = field(default_factory=dict)
    _later: dict[str, float] = field(default_factory=dict)
    _heap: list[tuple[float, str]] = field(default_factory=list)

    def add(self, key: str, now: float) -> None:
        """Look at ``key`` as soon as a worker is free."""
        self.stats.added += 1
        if key in self._dirty:
            self.stats.coalesced += 1
            return
        self._dirty[key] = now
        if key not in self._processing:
            self._order.append(key)

    def add_at(self, key: str, when: float) -> None:
        """Look at ``key`` at that time, or before if an earlier time was asked for."""
        if when < self._later.get(key, float("inf")):
            self._later[key] = when
            heapq.heappush(self._heap, (when, key))

    def take(self, now: float) -> str | None:
        """The next key, which is being processed from now on."""
        while self._heap and self._heap[0][0] <= now:
            when, key = heapq.heappop(self._heap)
            if self._later.get(key) == when:
                del self._later[key]
                self.add(key, now)
        if not self._order:
            return None
        key = self._order.popleft()
        self.stats.taken += 1
        self.stats.waited_s += now - self._dirty.pop(key)
        self._processing.add(key)
        return key

    def done(self, key: str) -> None:
        """The worker has finished with ``key``, well or not."""
        self._processing.discard(key)
        if key in self._dirty:
            self._order.append(key)

    def succeeded(self, key: str) -> None:
        """Forget earlier failures."""
        self._failures.pop(key, None)

    def failed(self, key: str, now: float) -> float:
        """Come back to ``key`` later; returns the wait."""
        self.stats.failed += 1
        self._failures[key] = self._failures.get(key, 0) + 1
        wait = self.backoff.wait(self._failures[key], self.random)
        self.add_at(key, now + wait)
        return wait

    def next_time(self) -> float | None:
        """When the earliest postponed key is due."""
        while self._heap and self._later.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    @property
    def depth(self) -> int:
        """Keys ready to be taken."""
        return len(self._order)

    @property
    def idle(self) -> bool:
        """Nothing is ready and nothing is being processed; postponed keys may remain."""
        return not self._order and not self._processing


class WorkQueue:
    """`Backlog` for asyncio workers of one event loop."""

    def __init__(self, backlog: Backlog | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.backlog = backlog or Backlog()
        self._clock = clock
        self._changed = asyncio.Event()

    def add(self, key: str) -> None:
        self.backlog.add(key, self._clock())
        self._changed.set()

    def add_after(self, key: str, seconds: float) -> None:
        if seconds <= 0:
            self.add(key)
            return
        self.backlog.add_at(key, self._clock() + seconds)
        self._changed.set()

    def succeeded(self, key: str) -> None:
        self.backlog.succeeded(key)

    def failed(self, key: str) -> float:
        wait = self.backlog.failed(key, self._clock())
        self._changed.set()
        return wait

    async def take(self) -> str:
        """Wait for a key. The caller must call `done` with it."""
        while True:
            key = self.backlog.take(self._clock())
            if key is not None:
                return key
            self._changed.clear()
            due = self.backlog.next_time()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock())):
                    await self._changed.wait()

    def done(self, key: str) -> None:
        self.backlog.done(key)
        self._changed.set()
