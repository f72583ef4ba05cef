"""How far the services are, for people who wait. Pure: objects and leases in, a small view out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundhouse_kv.records import Lease
from roundhouse_operator.cluster import Obj
from roundhouse_operator.reasons import STUCK, Reason

_MOVING = (Reason.STARTING, Reason.FETCHING_MODEL, Reason.LOADING_MODEL)
_PLAIN: Mapping[str, str] = {
    Reason.STARTING: "starting",
    Reason.PULLING_IMAGE: "starting",  # Nothing is pulled in the local run.
    Reason.LOADING_MODEL: "loading model",
}
PHASES = {"fetch": "fetching model", "convert": "converting model", "load": "loading model", "warmup": "warming up"}


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One line. ``done`` of ``total`` bytes; total 0: no bar."""

    name: str
    ready: bool
    reason: str
    message: str
    phase: str = ""
    done: int = 0
    total: int = 0

    @property
    def stuck(self) -> bool:
        """Without a person nothing will change."""
        return self.reason in STUCK

    @property
    def text(self) -> str:
        if self.ready:
            return "ready"
        if self.phase:
            return PHASES[self.phase]
        if self.reason in _PLAIN:
            return _PLAIN[self.reason]
        return f"{self.reason}: {self.message}" if self.message else self.reason

    @property
    def milestone(self) -> str:
        """Changes only when there is something new to say."""
        tenths = min(10, 10 * self.done // self.total) if self.total else 0
        return f"{self.text} {10 * tenths} %" if self.total and self.phase else self.text


@dataclass(frozen=True, slots=True)
class ServiceView:
    key: str
    model: str
    ready: bool
    complete: bool
    reason: str
    message: str
    replicas: tuple[ReplicaView, ...]


def service_view(service: Obj, replicas: Sequence[Obj], leases: Mapping[str, Lease]) -> ServiceView:
    """``complete``: ready with as many replicas as wanted, and this is about the present spec."""
    metadata, spec, status = service["metadata"], service["spec"], service.get("status") or {}
    ready = _condition(service, "Ready")
    accepted = _condition(service, "Accepted")
    shown = accepted if accepted.get("status") == "False" else ready
    current = status.get("observedGeneration") == metadata["generation"]
    wanted = spec.get("replicas", 1)
    complete = current and ready.get("status") == "True" and status.get("readyReplicas", 0) >= wanted
    return ServiceView(
        key=f"{metadata['namespace']}/{metadata['name']}",
        model=(spec.get("servedNames") or [metadata["name"]])[0],
        ready=ready.get("status") == "True",
        complete=complete,
        reason=shown.get("reason", ""),
        message=shown.get("message", ""),
        replicas=tuple(_replica_view(replica, leases.get(replica["metadata"]["uid"])) for replica in replicas),
    )


def _replica_view(replica: Obj, lease: Lease | None) -> ReplicaView:
    ready = _condition(replica, "Ready")
    view = ReplicaView(
        name=replica["metadata"]["name"],
        ready=ready.get("status") == "True",
        reason=ready.get("reason", "Starting"),
        message=ready.get("message", ""),
    )
    if view.reason not in _MOVING or lease is None or lease.progress is None or lease.state != "starting":
        return view
    step = lease.progress
    return ReplicaView(view.name, False, view.reason, view.message, step.phase, step.done, step.total)


def _condition(obj: Obj, kind: str) -> Obj:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), {})
