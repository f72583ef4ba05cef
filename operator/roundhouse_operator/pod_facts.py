"""Plain facts read out of a Pod object, with no opinion on them. Pure."""

from dataclasses import dataclass
from typing import Any

from roundhouse_operator.cluster import Obj
from roundhouse_operator.timestamps import from_timestamp


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended."""

    code: int
    reason: str
    message: str
    finished: float | None


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """One container. ``last_exit`` is its latest end, now or before the current run."""

    waiting: str = ""
    waiting_message: str = ""
    running_since: float | None = None
    ended: bool = False
    ready: bool = False
    restarts: int = 0
    last_exit: Exit | None = None

    @property
    def succeeded(self) -> bool:
        return self.ended and self.last_exit is not None and self.last_exit.code == 0


def owner_uid(obj: Obj) -> str | None:
    """UID of the controlling owner."""
    owners = obj["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def is_terminating(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_overdue(pod: Obj, now: float, overdue_s: float) -> bool:
    """Terminating for longer than its grace allows. ``deletionTimestamp`` is the end of the grace."""
    text = pod["metadata"].get("deletionTimestamp")
    return text is not None and now > from_timestamp(text) + overdue_s


def phase(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def pod_ip(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def pod_condition(pod: Obj, kind: str) -> dict[str, Any] | None:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def is_ready(pod: Obj) -> bool:
    ready = pod_condition(pod, "Ready")
    return ready is not None and ready.get("status") == "True"


def container(pod: Obj, name: str) -> ContainerFacts:
    """Facts of one container or init container; all empty while the kubelet has not reported it."""
    status = pod.get("status") or {}
    reported = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    found = next((item for item in reported if item.get("name") == name), None)
    if found is None:
        return ContainerFacts()
    state, last = found.get("state") or {}, found.get("lastState") or {}
    waiting, running, ended = state.get("waiting") or {}, state.get("running") or {}, state.get("terminated")
    return ContainerFacts(
        waiting=str(waiting.get("reason") or ""),
        waiting_message=str(waiting.get("message") or ""),
        running_since=from_timestamp(running["startedAt"]) if running.get("startedAt") else None,
        ended=ended is not None,
        ready=bool(found.get("ready")),
        restarts=int(found.get("restartCount") or 0),
        last_exit=_exit(ended or last.get("terminated")),
    )


def _exit(terminated: dict[str, Any] | None) -> Exit | None:
    if terminated is None:
        return None
    finished = terminated.get("finishedAt")
    return Exit(
        code=int(terminated.get("exitCode") or 0),
        reason=str(terminated.get("reason") or ""),
        message=str(terminated.get("message") or ""),
        finished=from_timestamp(finished) if finished else None,
    )


def last_line(text: str, limit: int = 300) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:limit] if lines else ""
