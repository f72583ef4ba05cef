"""One service as a gateway knows it: pure state, changed by what the feed hears."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from roundhouse_kv.books import Books
from roundhouse_kv.index import ServiceIndex
from roundhouse_kv.names import ServiceKeys
from roundhouse_kv.records import Lease, Member, Profile, ServiceEntry
from roundhouse_kv.token_table import TokenTable

STALE_AFTER_S: Final = 2.5


@dataclass(slots=True)
class SeenLease:
    """A lease, when it was last heard (own monotonic seconds), and whether it is stale by now."""

    lease: Lease
    heard_at: float
    stale: bool = False


@dataclass(slots=True)
class ServiceView:
    """Updated in place; ``leases`` by replica uid, ``profiles`` and token ``tables`` by digest.

    ``leases`` holds members of the catalogue only, and only those that were heard at all.
    """

    keys: ServiceKeys
    entry: ServiceEntry
    index: ServiceIndex
    books: Books
    leases: dict[str, SeenLease] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    tables: dict[str, TokenTable] = field(default_factory=dict)
    unreadable_profiles: set[str] = field(default_factory=set)

    @property
    def pods(self) -> set[UUID]:
        return {uid for member in self.entry.members if (uid := pod_uuid(member)) is not None}

    def change(self, entry: ServiceEntry, now: float) -> None:
        """The catalogue says otherwise: forget whom it does not name any more."""
        before = self.pods
        self.entry = entry
        for gone in before - self.pods:
            self.books.drop_before(gone, None, now)
            self.index.drop(gone)
        pod_of = {member.replica_uid: member.pod_uid for member in entry.members}
        for uid in [uid for uid, seen in self.leases.items() if pod_of.get(uid) != seen.lease.pod_uid]:
            del self.leases[uid]

    def hear(self, lease: Lease, now: float) -> bool:
        """Take a lease in; False for one of a stranger, of another pod or of an engine that is no more."""
        member = next((each for each in self.entry.members if each.replica_uid == lease.replica_uid), None)
        if member is None or member.pod_uid != lease.pod_uid:
            return False
        seen = self.leases.get(lease.replica_uid)
        if seen is not None and lease.epoch < seen.lease.epoch:
            return False
        self.leases[lease.replica_uid] = SeenLease(lease, now)
        pod = pod_uuid(member)
        if pod is not None:
            self.index.heard(lease, now)
            self.books.drop_before(pod, lease.epoch, now)
        return True

    def judge(self, now: float) -> None:
        """Mark what was not heard for too long. Call it only while Redis is settled."""
        for seen in self.leases.values():
            seen.stale = now - seen.heard_at > STALE_AFTER_S

    def missing_profiles(self) -> set[str]:
        """Digests that leases name and that are neither here nor known to be unreadable."""
        named = {seen.lease.profile for seen in self.leases.values() if seen.lease.profile}
        return named - self.profiles.keys() - self.unreadable_profiles

    def forget_profiles(self) -> None:
        """Those that no lease names any more."""
        named = {seen.lease.profile for seen in self.leases.values()}
        for digest in self.profiles.keys() - named:
            del self.profiles[digest]
            self.tables.pop(digest, None)
        self.unreadable_profiles &= named


def pod_uuid(member: Member) -> UUID | None:
    """None for a pod uid that is no UUID: such a pod cannot be indexed."""
    try:
        return UUID(member.pod_uid)
    except ValueError:
        return None


def member_uids(entry: ServiceEntry) -> Iterable[str]:
    return [member.replica_uid for member in entry.members]
