"""One EngineReplica with its pod and lease, as the plan sees it. Pure.

``Fate`` answers what the operator may still hope for; ``diagnosis`` (next module) explains it to people. A missing or
stale lease changes neither.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from roundhouse_kv.records import Lease

from roundhouse_operator.cluster import Obj
from roundhouse_operator.live import Live
from roundhouse_operator.pod_facts import (
    ContainerFacts,
    container,
    is_overdue,
    is_ready,
    is_terminating,
    owner_uid,
    phase,
    pod_ip,
)
from roundhouse_operator.settings import Settings
from roundhouse_operator.timestamps import from_timestamp, to_timestamp


class Fate(Enum):
    """NEW: no pod was made yet. LIVE: running or on its way. STOPPING: being deleted. The rest is to be replaced:
    GONE: its pod was deleted. ENDED: its pod failed for good. OVERDUE: deleted, but its node does not answer.
    CRASHING: its engine restarts again and again. HUNG: its engine runs and does nothing.
    """

    NEW = auto()
    LIVE = auto()
    STOPPING = auto()
    GONE = auto()
    ENDED = auto()
    OVERDUE = auto()
    CRASHING = auto()
    HUNG = auto()


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """``obj`` is the EngineReplica. ``ready``: answers requests now. ``was_ready``: it may hold requests in flight."""

    obj: Obj
    pod: Obj | None
    lease: Lease | None
    fate: Fate
    ready: bool
    was_ready: bool
    drained: bool
    restarts: dict[str, Any] | None
    foreign: bool = False
    """Made by another installation: its agent speaks to another Redis or under another name."""

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"]["uid"])

    @property
    def revision(self) -> str:
        """Empty, which is nobody's, for what another installation made."""
        return "" if self.foreign else str(self.obj["spec"]["revision"])

    @property
    def created(self) -> float:
        return from_timestamp(self.obj["metadata"]["creationTimestamp"])

    @property
    def status(self) -> dict[str, Any]:
        return self.obj.get("status") or {}

    @property
    def deadline(self) -> float | None:
        """End of the drain that the operator asked for."""
        drain = self.obj["spec"].get("drain")
        return from_timestamp(drain["deadline"]) if drain else None

    @property
    def draining(self) -> bool:
        return self.deadline is not None

    @property
    def address(self) -> str:
        return pod_ip(self.pod) if self.pod else ""

    @property
    def serving(self) -> bool:
        """Counts as available: ready, and meant to stay."""
        return self.ready and not self.draining and self.fate is Fate.LIVE

    @property
    def in_flight(self) -> int:
        """Requests that its agent reported; 0 while unknown."""
        return ((self.lease.running or 0) + (self.lease.waiting or 0)) if self.lease else 0


def view_replicas(
    replicas: Iterable[Obj], pods: Iterable[Obj], live: Live, now: float, settings: Settings
) -> list[ReplicaView]:
    """Oldest first."""
    by_owner = {owner_uid(pod): pod for pod in pods}
    views = [_view(obj, by_owner.get(obj["metadata"]["uid"]), live, now, settings) for obj in replicas]
    return sorted(views, key=lambda view: (view.created, view.name))


def _view(obj: Obj, pod: Obj | None, live: Live, now: float, settings: Settings) -> ReplicaView:
    uid, status = obj["metadata"]["uid"], obj.get("status") or {}
    lease = live.leases.get(uid)
    ready = pod is not None and is_ready(pod) and not is_terminating(pod)
    engine = container(pod, "engine") if pod else ContainerFacts()
    restarts = count_restarts(status.get("restarts"), engine, now, settings.restart_window_s)
    return ReplicaView(
        obj=obj,
        pod=pod,
        lease=lease,
        fate=_fate(obj, pod, ready, restarts, lease if live.healthy else None, now, settings),
        ready=ready,
        was_ready=ready or "readyTime" in status,
        drained=uid in live.drained or (lease is not None and lease.state in ("drained", "stopped")),
        restarts=restarts,
        foreign=_installation(obj) not in (None, settings.installation),
    )


def _installation(obj: Obj) -> str | None:
    """What its agent was told."""
    containers = obj["spec"]["template"].get("spec", {}).get("initContainers") or []
    env = next((item.get("env") or [] for item in containers if item.get("name") == "agent"), [])
    return next((item.get("value") for item in env if item.get("name") == "RH_INSTALLATION"), None)


def _fate(
    obj: Obj,
    pod: Obj | None,
    ready: bool,
    restarts: dict[str, Any] | None,
    lease: Lease | None,
    now: float,
    settings: Settings,
) -> Fate:
    if pod is None:
        if is_terminating(obj):
            return Fate.STOPPING
        return Fate.GONE if (obj.get("status") or {}).get("podUID") else Fate.NEW
    if is_overdue(pod, now, settings.overdue_s):
        return Fate.OVERDUE
    if is_terminating(obj) or is_terminating(pod):
        return Fate.STOPPING
    if phase(pod) in ("Failed", "Succeeded"):
        return Fate.ENDED
    if restarts and not ready and restarts["count"] - restarts["windowBase"] >= settings.max_restarts:
        return Fate.CRASHING
    if lease is not None and lease.hung and lease.pod_uid == pod["metadata"]["uid"]:
        return Fate.HUNG
    return Fate.LIVE


def count_restarts(
    before: dict[str, Any] | None, engine: ContainerFacts, now: float, window_s: float
) -> dict[str, Any] | None:
    """Restarts since the window began; a restart after its end begins a new one. Changes only with a restart."""
    count = engine.restarts
    if count == 0 or (before is not None and before["count"] >= count):
        return before
    latest = engine.last_exit.finished if engine.last_exit else None
    latest = now if latest is None else latest
    if before is not None and latest <= from_timestamp(before["windowStart"]) + window_s:
        return {**before, "count": count}
    return {"count": count, "windowStart": to_timestamp(latest), "windowBase": count - 1}
