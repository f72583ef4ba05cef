"""Which prefix keys each pod of one service holds, kept by the rules of contracts §6.

Pure: the feed brings batches, snapshots and leases, and asks which pods' snapshots it should load. What is known of a
pod is the set of keys after batch ``seq`` of agent ``source`` in engine ``epoch``:

* A fact of an older epoch is ignored; a newer epoch, wherever it is seen first, drops the keys.
* A new source's keys replace the old one's when its snapshot arrives, or when it starts with a batch that clears;
  before that its batches are left alone. Batches of a source that was replaced are ignored, unless a lease says that it
  speaks again: of who speaks now, the lease is the judge.
* A batch is applied only right after its predecessor. After a gap the pod stands still until a snapshot, and a replay
  of the log from there, have filled it. A batch that clears needs no predecessor.
* The lease tells what should have arrived: a ``kv_seq`` not reached within two seconds, or another number or XOR of
  keys at the same ``kv_seq``, make the pod suspect too.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final
from uuid import UUID

import numpy as np

from roundhouse_kv.kv_wire import TIER_GPU, KvBatch, KvSnapshot, Op
from roundhouse_kv.mirror import Change, Mirror
from roundhouse_kv.records import Lease

LAG_ALLOWED_S: Final = 2.0
RELOAD_PAUSE_S: Final = 1.0
RELOAD_PAUSE_MAX_S: Final = 8.0
LOAD_SLICE_KEYS: Final = 4096
NO_SLOT: Final = -1
"""Of a pod without keys: its first keys take one, so that a snapshot does not need two of the mirror's 64."""
_SUMS_KEPT: Final = 64
_SOURCES_KEPT: Final = 8
_MASKS_KEPT: Final = 1024


@dataclass(slots=True)
class _Pod:
    """``count`` and ``xor`` sum up the keys after ``seq``; ``sums`` holds the last few of them.

    ``sound`` False: the keys are doubted, any snapshot is better. ``awaited``: a source whose snapshot must come first.
    ``ahead``: the highest seq known to exist; from ``late_at`` on not having it counts as lost.
    """

    epoch: int
    source: int
    slot: int = NO_SLOT
    seq: int = 0
    count: int = 0
    xor: int = 0
    sound: bool = True
    awaited: int | None = None
    ahead: int = 0
    late_at: float = inf
    retry_at: float = -inf
    pause: float = RELOAD_PAUSE_S
    retired: deque[int] = field(default_factory=lambda: deque(maxlen=_SOURCES_KEPT))
    sums: deque[tuple[int, int, int]] = field(default_factory=lambda: deque([(0, 0, 0)], maxlen=_SUMS_KEPT))

    def reached(self, seq: int) -> None:
        self.seq = seq
        self.sums.append((seq, self.count, self.xor))
        if seq >= self.ahead:
            self.late_at = inf

    def emptied(self, slot: int) -> None:
        self.slot, self.count, self.xor, self.sound = slot, 0, 0, True
        self.sums.clear()

    def wait_for(self, source: int) -> None:
        """Its snapshot must come first. Another source that was waited for came before it and is history."""
        if self.awaited is not None and self.awaited != source:
            self.retired.append(self.awaited)
        self.awaited = source

    def await_seq(self, seq: int, late_at: float) -> None:
        """``seq`` exists; without it the pod is late from ``late_at`` on. An earlier deadline stays."""
        self.ahead = max(self.ahead, seq)
        self.late_at = min(self.late_at, late_at)

    def agrees(self, lease: Lease) -> bool:
        """False when the lease sums up other keys after a seq that is still remembered."""
        known = [(count, xor) for seq, count, xor in self.sums if seq == lease.kv_seq]
        return not known or known[-1] == (lease.key_count, lease.key_xor)

    def suspect(self, now: float) -> bool:
        return not self.sound or self.awaited is not None or now >= self.late_at


class ServiceIndex:
    """Presence of keys per pod. Times are the reader's own monotonic seconds.

    `match` also counts pods that are not `trusted`; what their answers are worth is the caller's decision.
    """

    def __init__(self, expected_keys: int = 0) -> None:
        self.mirror = Mirror(expected_keys)
        self._pods: dict[UUID, _Pod] = {}
        self._uids: dict[int, UUID] = {}
        self._named: dict[int, frozenset[int]] = {}
        self._changes: list[Change] = []
        self._now = 0.0

    @property
    def pods(self) -> Iterable[UUID]:
        return self._pods.keys()

    def apply(self, batch: KvBatch, now: float) -> None:
        """One entry of the KV log, in log order."""
        self.apply_all((batch,), now)

    def apply_all(self, batches: Iterable[KvBatch], now: float) -> None:
        """A whole read of the log at once; same result as one by one, cheaper per key."""
        self._now = now
        for batch in batches:
            self._apply(batch, now)
        self._flush()

    def load(self, snapshot: KvSnapshot, now: float) -> None:
        """A snapshot replaces the pod's keys, unless it is of the past."""
        for _ in self.load_slices(snapshot, now):
            pass

    def load_slices(self, snapshot: KvSnapshot, now: float) -> Iterator[None]:
        """`load`, yielding after each few thousand keys; readers see all of them or none."""
        self._now = now
        pod = self._meet(snapshot.pod_uid, snapshot.epoch, snapshot.source)
        if not _wanted(pod, snapshot):
            return
        slot = self.mirror.take()
        shown = False
        try:
            for start in range(0, len(snapshot.keys), LOAD_SLICE_KEYS):
                if start:
                    yield
                self.mirror.apply([Change(slot, True, snapshot.keys[start : start + LOAD_SLICE_KEYS])])
            if self._pods.get(snapshot.pod_uid) is pod and _wanted(pod, snapshot):
                self._hide(pod)
                self._adopt(pod, snapshot, slot, now)
                self._show(snapshot.pod_uid, slot)
                shown = True
        finally:
            if not shown:
                self.mirror.drop(slot)

    def drop(self, pod_uid: UUID) -> None:
        """The pod is gone; forget it."""
        pod = self._pods.pop(pod_uid, None)
        if pod is not None:
            self._hide(pod)

    def heard(self, lease: Lease, now: float) -> None:
        """Compare the lease's epoch, source, kv_seq, key_count and key_xor with what was applied."""
        self._now = now
        try:
            uid = UUID(lease.pod_uid)
        except ValueError:
            return
        has_keys = lease.kv_seq > 0 or lease.key_count > 0
        if uid not in self._pods and has_keys:
            self._meet(uid, lease.epoch, lease.source).await_seq(lease.kv_seq, now)
            return
        pod = self._meet(uid, lease.epoch, lease.source)
        if lease.epoch < pod.epoch:
            return
        if lease.source in pod.retired:
            pod.retired.remove(lease.source)
        if lease.source != pod.source:
            if pod.count or has_keys:
                pod.wait_for(lease.source)
            else:
                self._switch(pod, lease.source)
            return
        pod.awaited = None
        if lease.kv_seq <= pod.seq:
            pod.sound = pod.sound and pod.agrees(lease)
            if not pod.suspect(now):
                pod.pause = RELOAD_PAUSE_S
        elif pod.late_at == inf:
            pod.await_seq(lease.kv_seq, now + LAG_ALLOWED_S)

    def suspects(self, now: float) -> set[UUID]:
        """Pods whose snapshot must be (re)loaded now."""
        self._now = now
        return {uid for uid, pod in self._pods.items() if pod.suspect(now) and now >= pod.retry_at}

    def postpone(self, pod_uids: Iterable[UUID], now: float) -> None:
        """They were just looked after: what is suspect still waits 1 s, then twice as long each time, up to 8 s."""
        for pod in (self._pods[uid] for uid in pod_uids if uid in self._pods):
            if pod.suspect(now):
                pod.retry_at = now + pod.pause
                pod.pause = min(2 * pod.pause, RELOAD_PAUSE_MAX_S)

    def distrust(self, pod_uid: UUID, now: float) -> None:
        """Ask for a reload: something else than the log says that the keys are wrong."""
        if pod_uid in self._pods:
            self._pods[pod_uid].sound = False
            self._pods[pod_uid].retry_at = now

    def match(self, keys: Sequence[int]) -> Mapping[UUID, int]:
        """How many leading keys each pod holds, from events only; pods that hold none are absent."""
        return {UUID(int=number): depth for number, depth in self.depths(keys).items()}

    def depths(self, keys: Sequence[int]) -> Mapping[int, int]:
        """`match` by the pods' uids as ints, whose hashes cost a tenth."""
        depths: dict[int, int] = {}
        for depth, mask in self.mirror.lookup(keys):
            uids = self._named.get(mask) or self._name(mask)
            if not depths:
                depths = dict.fromkeys(uids, depth)
                continue
            for uid in uids:
                depths[uid] = depth
        return depths

    def trusted(self, pod_uid: UUID) -> bool:
        """False while the pod is unknown or waits for a snapshot: its matches are then a guess."""
        pod = self._pods.get(pod_uid)
        return pod is not None and not pod.suspect(self._now)

    def key_count(self, pod_uid: UUID) -> int:
        pod = self._pods.get(pod_uid)
        return 0 if pod is None else pod.count

    def epoch(self, pod_uid: UUID) -> int:
        """The newest epoch known of this pod; 0 when the pod is unknown."""
        pod = self._pods.get(pod_uid)
        return 0 if pod is None else pod.epoch

    def _apply(self, batch: KvBatch, now: float) -> None:
        pod = self._meet(batch.pod_uid, batch.epoch, batch.source)
        if batch.epoch < pod.epoch or batch.source in pod.retired:
            return
        if batch.source != pod.source:
            if not batch.clear and (pod.count or batch.seq != 1):
                pod.wait_for(batch.source)
                return
            self._switch(pod, batch.source)
        if batch.seq <= pod.seq:
            return
        if batch.clear:
            self._empty(pod)
        elif batch.seq != pod.seq + 1:
            pod.await_seq(batch.seq, now)
            return
        for section in batch.sections:
            if section.tier == TIER_GPU:
                if pod.slot == NO_SLOT:
                    pod.slot = self.mirror.take()
                    self._show(batch.pod_uid, pod.slot)
                self._count(pod, section.op, section.keys)
                self._changes.append(Change(pod.slot, section.op is Op.ADD, section.keys))
        pod.reached(batch.seq)

    def _meet(self, uid: UUID, epoch: int, source: int) -> _Pod:
        """The pod's record, made or brought to a newer epoch as needed."""
        pod = self._pods.get(uid)
        if pod is None:
            pod = self._pods[uid] = _Pod(epoch, source)
        elif epoch > pod.epoch:
            pod.epoch = epoch
            self._empty(pod)
        return pod

    def _empty(self, pod: _Pod) -> None:
        if pod.count or not pod.sound:
            self._hide(pod)
            pod.emptied(NO_SLOT)

    def _name(self, mask: int) -> frozenset[int]:
        """The pods of a mask, remembered: prompts share beginnings, so the same masks come again and again."""
        named = frozenset(uid.int for slot, uid in self._uids.items() if mask >> slot & 1)
        if len(self._named) >= _MASKS_KEPT:
            self._named.clear()
        self._named[mask] = named
        return named

    def _hide(self, pod: _Pod) -> None:
        self._named.clear()
        self._flush()
        if pod.slot != NO_SLOT:
            self.mirror.drop(pod.slot)
            del self._uids[pod.slot]

    def _show(self, uid: UUID, slot: int) -> None:
        self._named.clear()
        self._uids[slot] = uid
        self.mirror.show(slot)

    def _switch(self, pod: _Pod, source: int) -> None:
        """``source`` speaks for the pod from here on, counting from 1."""
        if source != pod.source:
            pod.retired.append(pod.source)
            pod.source, pod.seq, pod.ahead, pod.late_at = source, 0, 0, inf
            pod.sums.clear()
            pod.sums.append((0, pod.count, pod.xor))
            pod.wait_for(source)
            pod.awaited = None

    def _adopt(self, pod: _Pod, snapshot: KvSnapshot, slot: int, now: float) -> None:
        seen = pod.seq if snapshot.source == pod.source else 0
        self._switch(pod, snapshot.source)
        pod.emptied(slot)
        self._count(pod, Op.ADD, snapshot.keys)
        pod.reached(snapshot.seq)
        if seen > snapshot.seq:
            pod.await_seq(seen, now)

    def _count(self, pod: _Pod, op: Op, keys: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> None:
        pod.count += len(keys) if op is Op.ADD else -len(keys)
        pod.xor ^= int(np.bitwise_xor.reduce(keys))

    def _flush(self) -> None:
        if self._changes:
            changes, self._changes = self._changes, []
            self.mirror.apply(changes)


def _wanted(pod: _Pod, snapshot: KvSnapshot) -> bool:
    """Whether a snapshot tells more than is known already."""
    if snapshot.epoch < pod.epoch or snapshot.source in pod.retired:
        return False
    if snapshot.source != pod.source or snapshot.seq > pod.seq or not pod.sound:
        return True
    return snapshot.seq == pod.seq and pod.late_at < inf
