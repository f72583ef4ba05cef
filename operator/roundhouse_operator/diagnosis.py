"""Why a replica is not ready, in one reason and a message with the remedy. Pure.

Containers start one after the other (agent, fetch, engine), so the first that has not done its part explains the
state. Kubelets hardly ever report CrashLoopBackOff these days; restart counts and the last exit tell instead.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roundhouse_kv.records import Progress

from roundhouse_operator.cluster import Obj
from roundhouse_operator.pod_facts import ContainerFacts, Exit, container, last_line, pod_condition
from roundhouse_operator.reasons import STUCK, Reason
from roundhouse_operator.replica_view import Fate, ReplicaView

RETRY_GRACE_S = 20.0
"""A fetch that failed before and runs for this long again is fetching; a shorter run may be the next failure."""

_IMAGE_ERRORS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_KILLED = (137, 143)
_CONFIG_ERRORS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_FATES = {
    Fate.NEW: (Reason.STARTING, "waiting for its pod"),
    Fate.STOPPING: (Reason.TERMINATING, "is being deleted"),
    Fate.GONE: (Reason.POD_GONE, "its pod was deleted; it is replaced"),
    Fate.OVERDUE: (Reason.NODE_LOST, "its pod does not end, so its node is lost; it is replaced"),
    Fate.HUNG: (Reason.ENGINE_HUNG, "the engine has requests running and produces nothing; it is restarted elsewhere"),
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``reason`` READY: it answers."""

    reason: Reason
    message: str

    @property
    def stuck(self) -> bool:
        return self.reason in STUCK


def diagnose(view: ReplicaView, now: float, refusals: Mapping[str, str]) -> Diagnosis:
    """``refusals``: what the API said when it refused to create an object of that name."""
    if view.fate is Fate.NEW and view.name in refusals:
        return _refused(refusals[view.name])
    if view.fate in _FATES:
        return Diagnosis(*_FATES[view.fate])
    if view.draining:
        return Diagnosis(Reason.DRAINING, "finishing the requests in flight, then it stops")
    if view.ready:
        return Diagnosis(Reason.READY, "")
    pod = view.pod
    assert pod is not None
    if view.fate is Fate.ENDED:
        return _ended(pod)
    progress = view.lease.progress if view.lease else None
    for found in _symptoms(pod, progress, now):
        return found
    return Diagnosis(Reason.STARTING, "the node prepares its containers")


def _symptoms(pod: Obj, progress: Progress | None, now: float) -> Iterator[Diagnosis]:
    """Everything that explains why this pod is not ready, the most telling first."""
    yield from _unscheduled(pod)
    containers = {name: container(pod, name) for name in _names(pod)}
    for name, facts in containers.items():
        yield from _cannot_start(name, facts, _image(pod, name))
    agent, engine = containers["agent"], containers["engine"]
    if not agent.running_since and agent.restarts > 1:
        yield Diagnosis(Reason.AGENT_CRASH_LOOP, f"the agent keeps ending: {_last_words(agent.last_exit)}")
    if agent.waiting and not agent.restarts:
        yield _pulling(pod, "agent")
    fetch = containers.get("fetch")
    if fetch is not None and not fetch.succeeded:
        yield from _fetching(fetch, progress, now)
    elif engine.running_since or engine.last_exit:
        yield _loading(engine, pod["metadata"]["name"], progress)
    elif engine.waiting:
        yield _pulling(pod, "engine")


def _pulling(pod: Obj, name: str) -> Diagnosis:
    """A kubelet does not say whether it pulls, mounts or creates; pulling is what takes long."""
    return Diagnosis(Reason.PULLING_IMAGE, f"pulling {_image(pod, name)} or mounting its volumes")


def _unscheduled(pod: Obj) -> Iterator[Diagnosis]:
    scheduled = pod_condition(pod, "PodScheduled")
    if scheduled is None or scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return
    said = str(scheduled.get("message") or "no node fits")
    gpus = _gpu_request(pod)
    if "persistentvolumeclaim" in said.lower():
        remedy = "create the claim of spec.modelCache, or see `kubectl describe pvc` for why it has no volume"
        yield Diagnosis(Reason.VOLUME_PENDING, f"{said} — {remedy}")
    elif "volume node affinity conflict" in said or "Multi-Attach" in said:
        yield Diagnosis(Reason.VOLUME_PENDING, f"{said} — use a claim that many nodes may mount (ReadWriteMany)")
    elif gpus and (gpus[0] in said or "affinity" in said):
        resource, count = gpus
        remedy = f"free {count} × {resource} on one node, add a node, or lower spec.resources.gpus or spec.replicas"
        if "affinity" in said:
            remedy = f"no node with a free GPU of the type in spec.resources.gpuType; {remedy}"
        yield Diagnosis(Reason.WAITING_FOR_GPU, f"{said} — {remedy}")
    else:
        yield Diagnosis(Reason.UNSCHEDULABLE, f"{said} — lower spec.resources, or add a node that fits")


def _cannot_start(name: str, facts: ContainerFacts, image: str) -> Iterator[Diagnosis]:
    if facts.waiting in _IMAGE_ERRORS:
        said = last_line(facts.waiting_message) or facts.waiting
        yield Diagnosis(
            Reason.IMAGE_PULL_FAILED,
            f"container {name}: {said} — check that {image} exists and that the node may pull it",
        )
    elif facts.waiting in _CONFIG_ERRORS:
        said = last_line(facts.waiting_message) or facts.waiting
        if "secret" in said.lower() and "not found" in said.lower():
            yield Diagnosis(Reason.SECRET_NOT_FOUND, f"container {name}: {said} — create it in this namespace")
        else:
            yield Diagnosis(Reason.CONTAINER_CONFIG_ERROR, f"container {name}: {said}")


def _fetching(fetch: ContainerFacts, progress: Progress | None, now: float) -> Iterator[Diagnosis]:
    failed = fetch.last_exit is not None and fetch.last_exit.code != 0
    retrying = fetch.running_since is not None and now - fetch.running_since >= RETRY_GRACE_S
    if failed and not retrying:
        yield Diagnosis(Reason.MODEL_FETCH_FAILED, f"{_last_words(fetch.last_exit)} (it is tried again)")
    elif fetch.running_since is not None:
        yield Diagnosis(Reason.FETCHING_MODEL, _progress_text(progress, ("fetch", "convert"), "fetching the model"))


def _loading(engine: ContainerFacts, pod_name: str, progress: Progress | None) -> Diagnosis:
    down = engine.running_since is None
    if engine.last_exit is not None and (down or engine.restarts > 1):
        return Diagnosis(
            Reason.ENGINE_CRASH_LOOP,
            f"the engine ended {_times(engine.restarts + (1 if engine.ended else 0))}: {_last_words(engine.last_exit)}"
            f"{_remedy(engine.last_exit)} — see the log of container engine in pod {pod_name}",
        )
    text = _progress_text(progress, ("load", "warmup"), "the engine loads the model")
    if engine.last_exit is not None:
        text = f"{text}, after it ended once: {_last_words(engine.last_exit)}"
    return Diagnosis(Reason.LOADING_MODEL, text)


def _progress_text(progress: Progress | None, phases: tuple[str, ...], otherwise: str) -> str:
    if progress is None or progress.phase not in phases:
        return otherwise
    words = {"fetch": "fetching the model", "convert": "converting the model", "load": "loading the model"}
    text = words.get(progress.phase, "warming up")
    if not progress.total:
        return text
    # In tenths, so that a long download changes a status ten times and not a thousand.
    tenths = min(10, 10 * progress.done // progress.total)
    return f"{text}: {10 * tenths} % of {_size(progress.total)}"


def _size(count: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def _ended(pod: Obj) -> Diagnosis:
    status = pod.get("status") or {}
    said = status.get("message") or status.get("reason") or container(pod, "engine").waiting or "no reason given"
    return Diagnosis(Reason.POD_FAILED, f"its pod ended for good: {last_line(str(said))}; it is replaced")


def _refused(said: str) -> Diagnosis:
    if "quota" in said.lower():
        return Diagnosis(Reason.QUOTA_EXCEEDED, f"{said} — raise the quota of this namespace, or lower spec.resources")
    return Diagnosis(Reason.CREATE_REFUSED, said)


def _last_words(last: Exit | None) -> str:
    if last is None:
        return "no message"
    if last.reason == "OOMKilled":
        return "out of memory (OOMKilled)"
    if last.code in _KILLED and last.reason != "Completed":
        said = last_line(last.message)
        return f"{said}; it was killed (exit code {last.code})" if said else f"killed (exit code {last.code})"
    return last_line(last.message) or f"exit code {last.code}"


def _remedy(last: Exit) -> str:
    if last.reason == "OOMKilled":
        return "; raise spec.resources.memory"
    if last.code in _KILLED:
        return "; a node kills an engine that did not answer /health for a minute, or did not start within the hour"
    return ""


def _times(count: int) -> str:
    return "once" if count <= 1 else "again and again"


def _names(pod: Obj) -> list[str]:
    spec = pod["spec"]
    return [item["name"] for item in (*spec.get("initContainers", ()), *spec["containers"])]


def _image(pod: Obj, name: str) -> str:
    spec = pod["spec"]
    items = (*spec.get("initContainers", ()), *spec["containers"])
    return next((str(item.get("image", "")) for item in items if item["name"] == name), "")


def _gpu_request(pod: Obj) -> tuple[str, str] | None:
    """Extended resource and count that the engine asks for."""
    for item in pod["spec"]["containers"]:
        limits = (item.get("resources") or {}).get("limits") or {}
        for resource, count in limits.items():
            if "/" in resource:
                return resource, str(count)
    return None
