"""The bounded history of one kind, from which watches are served.

A watch keeps no queue: it remembers the last resourceVersion it has read and reads on from the history, woken by each
change. A watch that falls behind what the history still holds gets `Expired`, as from a real API server, and lists
again. So a slow watcher costs nothing, and a watcher that reconnects with its last resourceVersion misses nothing.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from roundhouse_operator.cluster import Expired, Obj, WatchEvent

from roundhouse_local.api.selectors import matches
from roundhouse_local.api.tree import clone

DEFAULT_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Change:
    """One write. ``before`` is the object it replaced; for DELETED ``after`` is its last state with the new version."""

    version: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    after: Obj
    before: Obj | None


@dataclass(frozen=True, slots=True)
class Scope:
    """What one watch wants to see."""

    namespace: str | None = None
    labels: Mapping[str, str] | None = None

    def holds(self, obj: Obj) -> bool:
        return (self.namespace is None or obj["metadata"].get("namespace") == self.namespace) and matches(
            obj, self.labels
        )


class History:
    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._changes: deque[Change] = deque()
        self._limit = limit
        self._dropped = 0
        self._wakers: set[asyncio.Event] = set()

    def add(self, change: Change) -> None:
        self._changes.append(change)
        while len(self._changes) > self._limit:
            self._dropped = self._changes.popleft().version
        self.wake()

    def wake(self) -> None:
        for waker in self._wakers:
            waker.set()

    def since(self, version: int) -> list[Change]:
        """Changes after ``version``. Raises `Expired` when some of them are no longer held."""
        if version < self._dropped:
            raise Expired(f"too old resource version: {version} ({self._dropped})", 410)
        start = bisect_right(self._changes, version, key=lambda change: change.version)
        return [self._changes[i] for i in range(start, len(self._changes))]

    def forget(self) -> None:
        """Drop everything held, as a compaction does."""
        if self._changes:
            self._dropped = self._changes[-1].version
            self._changes.clear()
        self.wake()

    async def wait(self, version: int, timeout_s: float, stopped: Callable[[], bool]) -> None:
        """Until there is something after ``version``, the time is up, or ``stopped``."""
        waker = asyncio.Event()
        self._wakers.add(waker)
        try:
            if stopped() or version < self._dropped or (self._changes and self._changes[-1].version > version):
                return
            async with asyncio.timeout(timeout_s):
                await waker.wait()
        except TimeoutError:
            return
        finally:
            self._wakers.discard(waker)


def event_for(change: Change, scope: Scope) -> WatchEvent | None:
    """What a watch of this scope sees of the change: an object that leaves the scope looks deleted to it."""
    before = change.before is not None and scope.holds(change.before)
    after = change.type != "DELETED" and scope.holds(change.after)
    if after:
        return WatchEvent("MODIFIED" if before else "ADDED", clone(change.after))
    if before and change.before is not None:
        gone = clone(change.after if change.type == "DELETED" else change.before)
        gone["metadata"]["resourceVersion"] = str(change.version)
        return WatchEvent("DELETED", gone)
    return None
