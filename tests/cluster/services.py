"""InferenceServices on simulated engines, and what the cluster has of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.kube import Kube, Obj, eventually

OURS = "app.kubernetes.io/managed-by=roundhouse"


def sim(name: str, *args: str, namespace: str = "default", **spec: Any) -> Obj:
    """One replica without a GPU unless ``spec`` says otherwise."""
    metadata = {"name": name, "namespace": namespace}
    fields = {"engine": {"name": "sim", "args": list(args)}, "resources": {"gpus": 0}, **spec}
    return {"apiVersion": "roundhouse.dev/v1alpha1", "kind": "InferenceService", "metadata": metadata, "spec": fields}


def wait_ready(kube: Kube, name: str, *, namespace: str = "default", within: int = 90) -> None:
    condition = f"--for=condition=Ready=True --timeout={within}s".split()
    kube.kubectl("wait", f"infsvc/{name}", "--namespace", namespace, *condition, timeout=within + 15)


@contextmanager
def serving(kube: Kube, service: Obj) -> Iterator[str]:
    """The service for as long as the block lasts, ready at its beginning; its end is not waited for."""
    meta = service["metadata"]
    with applied(kube, service) as name:
        wait_ready(kube, name, namespace=meta["namespace"])
        yield name


@contextmanager
def applied(kube: Kube, service: Obj) -> Iterator[str]:
    meta = service["metadata"]
    kube.apply(service)
    try:
        yield meta["name"]
    finally:
        kube.delete("infsvc", meta["name"], namespace=meta["namespace"])


def pods(kube: Kube, service: str, *, namespace: str = "default") -> list[Obj]:
    """Those that are not being deleted."""
    found = kube.get("pods", namespace=namespace, labels=f"roundhouse.dev/service={service}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def ready_pods(kube: Kube, service: str, *, namespace: str = "default") -> list[Obj]:
    return [pod for pod in pods(kube, service, namespace=namespace) if is_ready(pod)]


def is_ready(pod: Obj) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def names(objects: list[Obj]) -> set[str]:
    return {obj["metadata"]["name"] for obj in objects}


def uids(objects: list[Obj]) -> set[str]:
    return {obj["metadata"]["uid"] for obj in objects}


def container(pod: Obj, name: str) -> Obj:
    """The status of one container."""
    status = pod["status"]
    every = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return next(c for c in every if c["name"] == name)


def wait_reason(kube: Kube, service: str, reason: str, *, within: float = 60) -> Obj:
    """The condition Ready with that reason."""

    def look() -> Obj | None:
        condition = kube.condition("infsvc", service, "Ready")
        assert condition["reason"] == reason, condition
        return condition

    return eventually(look, within=within)
