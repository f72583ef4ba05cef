"""Keys that a pod is about to hold, because a request whose prompt completes them was just sent there.

Engines report blocks only after computing them, and the report travels; until then these keys stand in. They belong
to a request: dropped when it ends without a first event, else kept for a while after the first event, when the real
ones are there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class _Hold:
    until: float
    pod_uid: UUID
    epoch: int
    keys: tuple[int, ...]


class ExpectedKeys:
    """Counts owners per pod and key."""

    def __init__(self) -> None:
        self._owners: dict[int, dict[int, int]] = {}  # by the pod's uid as an int
        self._holds: list[_Hold] = []

    def add(self, pod_uid: UUID, keys: Sequence[int]) -> None:
        if keys:
            owners = self._owners.get(pod_uid.int)
            if owners is None:
                owners = self._owners[pod_uid.int] = {}
            for key in keys:
                owners[key] = owners.get(key, 0) + 1

    def remove(self, pod_uid: UUID, keys: Sequence[int]) -> None:
        owners = self._owners.get(pod_uid.int)
        if owners is None:
            return
        for key in keys:
            left = owners.get(key, 0)
            if left > 1:
                owners[key] = left - 1
            elif left:
                del owners[key]
        if not owners:
            del self._owners[pod_uid.int]

    def hold(self, pod_uid: UUID, epoch: int, keys: tuple[int, ...], until: float) -> None:
        """From now on the keys belong to nobody and go at ``until``."""
        if keys:
            self._holds.append(_Hold(until, pod_uid, epoch, keys))

    def expire(self, now: float) -> None:
        self._let_go([hold for hold in self._holds if now >= hold.until])

    def drop_before(self, pod_uid: UUID, epoch: int | None) -> None:
        """Held keys of an earlier epoch (None: of any) go at once."""
        self._let_go([h for h in self._holds if h.pod_uid == pod_uid and (epoch is None or h.epoch < epoch)])

    def anywhere(self, key: int) -> bool:
        return any([key in owners for owners in self._owners.values()])

    def depth(self, pod_uid: UUID, keys: Sequence[int], start: int) -> int:
        """How many keys from index ``start`` on are expected, without a hole."""
        owners = self._owners.get(pod_uid.int)
        if owners is None:
            return 0
        end = start
        while end < len(keys) and keys[end] in owners:
            end += 1
        return end - start

    def __len__(self) -> int:
        return sum(len(owners) for owners in self._owners.values())

    def _let_go(self, holds: list[_Hold]) -> None:
        if holds:
            gone = set(map(id, holds))
            self._holds = [hold for hold in self._holds if id(hold) not in gone]
            for hold in holds:
                self.remove(hold.pod_uid, hold.keys)
