"""Binds pods to nodes by what they request: GPUs, CPU, memory, node labels. The decision is a pure function.

A pod that fits nowhere says so in its PodScheduled condition in the scheduler's words, and is tried again after every
change of a pod or node. Taints, affinities between pods and preferences are not looked at.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from roundhouse_operator.cluster import POD, Kind, Obj

from roundhouse_local.api.history import Change
from roundhouse_local.api.metadata import Stamps
from roundhouse_local.api.quantity import Amounts, amounts, pod_requests, total
from roundhouse_local.api.store import Key, Store, Stored
from roundhouse_local.api.tree import clone

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``node`` is where the pod goes; empty, with ``message``, when no node has room."""

    node: str
    message: str = ""


def choose_node(pod: Obj, nodes: Sequence[Obj], pods: Sequence[Obj]) -> Verdict:
    """The node with the most GPUs left, then the fewest pods, then the first by name."""
    try:
        need = pod_requests(pod)
    except ValueError as error:
        return Verdict("", str(error))
    complaints: Counter[str] = Counter()
    fitting: list[tuple[Fraction, Fraction, str]] = []
    for node in nodes:
        name = node["metadata"]["name"]
        free = _free(node, pods)
        lacking = _complaints(pod, node, need, free)
        complaints.update(lacking)
        if not lacking:
            fitting.append((-free.get("nvidia.com/gpu", Fraction(0)), -free.get("pods", Fraction(0)), name))
    if fitting:
        return Verdict(min(fitting)[2])
    if not nodes:
        return Verdict("", "no nodes available to schedule pods")
    why = ", ".join(f"{count} {complaint}" for complaint, count in sorted(complaints.items()))
    return Verdict("", f"0/{len(nodes)} nodes are available: {why}.")


def _free(node: Obj, pods: Sequence[Obj]) -> Amounts:
    name = node["metadata"]["name"]
    used = total(_counted(pod) for pod in pods if pod["spec"].get("nodeName") == name and _occupies(pod))
    allocatable = amounts(node.get("status", {}).get("allocatable") or {})
    return {resource: amount - used.get(resource, Fraction(0)) for resource, amount in allocatable.items()}


def _counted(pod: Obj) -> Amounts:
    try:
        return pod_requests(pod)
    except ValueError:  # It was created with a node name, past the scheduler.
        return {"pods": Fraction(1)}


def _complaints(pod: Obj, node: Obj, need: Amounts, free: Amounts) -> list[str]:
    if not _selected(pod["spec"], node["metadata"].get("labels") or {}):
        return ["node(s) didn't match Pod's node affinity/selector"]
    if node.get("spec", {}).get("unschedulable"):
        return ["node(s) were unschedulable"]
    lacking = sorted(name for name, amount in need.items() if amount > free.get(name, Fraction(0)))
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]


def _selected(spec: Obj, labels: Mapping[str, str]) -> bool:
    """By node selector and required node affinity; of the affinity's terms one is enough."""
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    terms = required["nodeSelectorTerms"]
    return any(all(_holds(rule, labels) for rule in term.get("matchExpressions") or ()) for term in terms)


def _holds(rule: Obj, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(rule["key"]), rule.get("values") or []
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


def _occupies(pod: Obj) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


class Scheduler:
    def __init__(self, store: Store, node_kind: Kind, stamps: Stamps) -> None:
        self._store = store
        self._node_kind = node_kind
        self._stamps = stamps
        self._wake = asyncio.Event()
        store.listen(self._note)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self.schedule()

    def schedule(self) -> int:
        """Try every waiting pod, oldest first; returns how many pods were written."""
        written = 0
        waiting = [(key, stored) for key, stored in self._store.items(POD) if _waits(stored.obj)]
        for key, stored in sorted(waiting, key=lambda item: str(item[1].obj["metadata"]["creationTimestamp"])):
            nodes = [node.obj for _, node in self._store.items(self._node_kind)]
            pods = [pod.obj for _, pod in self._store.items(POD)]
            written += self._write(key, stored, choose_node(stored.obj, nodes, pods))
        return written

    def _note(self, key: Key, change: Change) -> None:
        if key.kind in (POD, self._node_kind):
            self._wake.set()

    def _write(self, key: Key, stored: Stored, verdict: Verdict) -> bool:
        pod: Obj = clone(stored.obj)
        condition = {"type": "PodScheduled", "status": "True" if verdict.node else "False"}
        if verdict.node:
            pod["spec"]["nodeName"] = verdict.node
        else:
            condition |= {"reason": "Unschedulable", "message": verdict.message}
        conditions = pod["status"].setdefault("conditions", [])
        before = next((item for item in conditions if item["type"] == "PodScheduled"), None)
        if before and {**before, **condition} == before:
            return False
        pod["status"]["conditions"] = [
            *(item for item in conditions if item is not before),
            {**condition, "lastProbeTime": None, "lastTransitionTime": self._stamps.time()},
        ]
        self._store.put(key, Stored(pod, stored.owners))
        logger.debug("scheduled", extra={"pod": f"{key.namespace}/{key.name}", "node": verdict.node})
        return True


def _waits(pod: Obj) -> bool:
    return not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"] and _occupies(pod)
