"""Watches the loads of services with ``spec.scaling`` and says when a plan would decide differently than the last one.

A plan is only made when something calls for it, because each one reads from the API server. So the loads, which come
out of Redis anyway, are looked at here every few seconds, without any request; the decision itself is made again by the
plan, from the same history.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from roundhouse_kv.records import Demand, Lease

from roundhouse_operator.autoscale import Bounds, Decision, History, Load, Report, Situation, decide
from roundhouse_operator.conditions import Verdict
from roundhouse_operator.scaling_status import scaling_verdict


@dataclass(frozen=True, slots=True)
class Subject:
    """What the last plan of a service knew: its bounds and replicas. ``serving``: EngineReplica UID → pod UID."""

    bounds: Bounds
    situation: Situation
    serving: Mapping[str, str]


@dataclass(slots=True)
class _Entry:
    subject: Subject
    history: History = field(default_factory=History)
    verdict: Verdict | None = None


class Autoscaler:
    """Histories by service key."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def follow(self, key: str, subject: Subject | None, now: float) -> None:
        """After a plan. None: this service does not scale by itself. Other bounds begin a new history."""
        before = self._entries.get(key)
        if subject is None:
            self._entries.pop(key, None)
        elif before is None or before.subject.bounds != subject.bounds:
            self._entries[key] = _Entry(subject)
        else:
            before.subject = subject
        if subject is not None:
            entry = self._entries[key]
            entry.verdict = scaling_verdict(entry.history, subject.bounds, subject.situation, now)

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)

    def history(self, key: str) -> History:
        entry = self._entries.get(key)
        return entry.history if entry else History()

    def services(self) -> list[str]:
        return list(self._entries)

    def look(self, key: str, leases: Mapping[str, Lease], demand: Mapping[int, Demand], now: float) -> bool:
        """Take one sample. True when it is time for a plan."""
        entry = self._entries[key]
        subject = entry.subject
        entry.history.add(now, report(subject.serving, leases, demand.values()), subject.bounds)
        decision = decide(entry.history, subject.bounds, subject.situation, now)
        verdict = scaling_verdict(entry.history, subject.bounds, subject.situation, now)
        changed = (verdict.status, verdict.reason) != (entry.verdict and (entry.verdict.status, entry.verdict.reason))
        return decision != Decision(subject.situation.current or 0) or changed


def report(serving: Mapping[str, str], leases: Mapping[str, Lease], demand: Iterable[Demand]) -> Report:
    """A lease of another pod says nothing about this one."""
    loads = []
    for uid, pod_uid in serving.items():
        lease = leases.get(uid)
        if lease is None or lease.pod_uid != pod_uid:
            loads.append(Load())
        else:
            loads.append(Load(lease.waiting, lease.running, lease.kv_used))
    return Report(tuple(loads), sum(each.held for each in demand))
