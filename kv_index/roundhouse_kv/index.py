"""Which prefix keys each pod of one service holds, kept by the rules of contracts §6.

Pure: the feed brings batches, snapshots and leases and asks which pods' snapshots it should load.
"""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from roundhouse_kv.kv_wire import KvBatch, KvSnapshot
from roundhouse_kv.records import Lease


class ServiceIndex:
    """Presence of keys per pod. Times are the reader's own monotonic seconds."""

    def apply(self, batch: KvBatch, now: float) -> None:
        """One entry of the KV log, in log order."""
        raise NotImplementedError

    def apply_all(self, batches: Iterable[KvBatch], now: float) -> None:
        """A whole read of the log at once; same result as one by one, cheaper per key."""
        raise NotImplementedError

    def load(self, snapshot: KvSnapshot, now: float) -> None:
        """A snapshot replaces the pod's keys, unless the index is already beyond it."""
        raise NotImplementedError

    def drop(self, pod_uid: UUID) -> None:
        """The pod is gone; forget it."""
        raise NotImplementedError

    def heard(self, lease: Lease, now: float) -> None:
        """Compare the lease's epoch, source, kv_seq, key_count and key_xor with what was applied."""
        raise NotImplementedError

    def suspects(self, now: float) -> set[UUID]:
        """Pods whose snapshot must be (re)loaded now."""
        raise NotImplementedError

    def distrust(self, pod_uid: UUID, now: float) -> None:
        """Ask for a snapshot reload (the truth check failed, the log was cut)."""
        raise NotImplementedError

    def match(self, keys: Sequence[int]) -> Mapping[UUID, int]:
        """How many leading keys each pod holds, from events only; pods that hold none are absent."""
        raise NotImplementedError

    def trusted(self, pod_uid: UUID) -> bool:
        """False while the pod is unknown or waits for a snapshot: its matches are then a guess."""
        raise NotImplementedError

    def key_count(self, pod_uid: UUID) -> int:
        raise NotImplementedError

    def epoch(self, pod_uid: UUID) -> int:
        """The newest epoch known of this pod; 0 when the pod is unknown."""
        raise NotImplementedError
