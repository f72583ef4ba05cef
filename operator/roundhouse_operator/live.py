"""What Redis and the agents say about one service: facts that may be late, and whose lack deletes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from roundhouse_kv.records import Lease, ServiceEntry

from roundhouse_operator.autoscale import History


@dataclass(frozen=True, slots=True)
class Live:
    """``healthy``: Redis answers. ``leases`` by EngineReplica UID, as last read; absent means unknown.

    ``unreadable``: UIDs of replicas with a lease of a version that this operator cannot read. ``loads``: what was
    reported of late, for services that scale by themselves. ``drained``: UIDs of replicas whose agents said so when
    asked directly. ``entry``: the catalogue entry as published last.
    """

    healthy: bool = True
    leases: Mapping[str, Lease] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    loads: History = field(default_factory=History)
    drained: frozenset[str] = frozenset()
    entry: ServiceEntry | None = None
