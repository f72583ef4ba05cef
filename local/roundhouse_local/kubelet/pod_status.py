"""Pod status as a kubelet writes it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from roundhouse_operator.cluster import Obj

from roundhouse_local.api.metadata import rfc3339
from roundhouse_local.kubelet.records import ContainerRecord, Running, Terminated, Waiting


@dataclass(frozen=True, slots=True)
class PodView:
    """Everything that the status is made from. ``prepared``: address and volumes are there. ``over``: for good."""

    init: Sequence[ContainerRecord]
    main: Sequence[ContainerRecord]
    pod_ip: str
    host_ip: str
    started_at: float
    prepared: bool
    over: bool


def pod_status(view: PodView, before: Obj, now: float) -> Obj:
    """``before`` is the status so far: conditions of others stay, and transition times of what did not flip."""
    status: Obj = {
        "phase": pod_phase(view),
        "qosClass": before.get("qosClass", "BestEffort"),
        "hostIP": view.host_ip,
        "hostIPs": [{"ip": view.host_ip}],
        "startTime": rfc3339(view.started_at),
        "conditions": _conditions(view, before.get("conditions") or [], now),
        "containerStatuses": [_container_status(record) for record in view.main],
    }
    if view.init:
        status["initContainerStatuses"] = [_container_status(record) for record in view.init]
    if view.pod_ip:
        status |= {"podIP": view.pod_ip, "podIPs": [{"ip": view.pod_ip}]}
    return status


def pod_phase(view: PodView) -> str:
    if view.over:
        return "Succeeded" if all(record.done for record in view.main) else "Failed"
    started = all(record.container_id for record in view.main)
    return "Running" if started and initialized(view) else "Pending"


def initialized(view: PodView) -> bool:
    """Once a main container has been started, a sidecar that restarts does not undo it."""
    return any(record.container_id for record in view.main) or not _uninitialized(view)


def _uninitialized(view: PodView) -> list[str]:
    return [record.name for record in view.init if not (record.started if record.role == "sidecar" else record.done)]


def _conditions(view: PodView, before: Sequence[Obj], now: float) -> list[Obj]:
    ready_checked = [*(record for record in view.init if record.role == "sidecar"), *view.main]
    unready = [record.name for record in ready_checked if not record.ready]
    waiting = [] if initialized(view) else _uninitialized(view)
    not_ready = ("ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]") if unready else None
    if unready and pod_phase(view) == "Succeeded":
        not_ready = ("PodCompleted", "")
    not_initialized = (
        ("ContainersNotInitialized", f"containers with incomplete status: [{' '.join(waiting)}]") if waiting else None
    )
    wanted = {
        "PodReadyToStartContainers": None if view.prepared else ("", ""),
        "Initialized": not_initialized,
        "Ready": not_ready,
        "ContainersReady": not_ready,
    }
    others = [condition for condition in before if condition["type"] not in wanted]
    return [*(_condition(kind, why, before, now) for kind, why in wanted.items()), *others]


def _condition(kind: str, why: tuple[str, str] | None, before: Sequence[Obj], now: float) -> Obj:
    condition: Obj = {"type": kind, "status": "False" if why else "True", "lastProbeTime": None}
    old = next((item for item in before if item["type"] == kind), None)
    flipped = old is None or old["status"] != condition["status"]
    condition["lastTransitionTime"] = rfc3339(now) if flipped or old is None else old["lastTransitionTime"]
    for field, value in zip(("reason", "message"), why or (), strict=False):
        if value:
            condition[field] = value
    return condition


def _container_status(record: ContainerRecord) -> Obj:
    status: Obj = {
        "name": record.name,
        "image": record.spec["image"],
        "imageID": "",
        "ready": record.ready,
        "started": record.started,
        "restartCount": record.restarts,
        "state": _state(record),
        "lastState": {"terminated": _terminated(record.last)} if record.last else {},
    }
    if record.container_id:
        status["containerID"] = record.container_id
    return status


def _state(record: ContainerRecord) -> Obj:
    match record.state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        case Running(started_at):
            return {"running": {"startedAt": rfc3339(started_at)}}
        case state:
            return {"terminated": _terminated(state)}


def _terminated(state: Terminated) -> Obj:
    found: Obj = {
        "exitCode": state.exit_code,
        "reason": state.reason,
        "startedAt": rfc3339(state.started_at),
        "finishedAt": rfc3339(state.finished_at),
        "containerID": state.container_id,
    }
    if state.signal:
        found["signal"] = state.signal
    if state.message:
        found["message"] = state.message
    return found
