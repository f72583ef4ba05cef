"""The small part of the Kubernetes API that the reconcile loop needs.

Implemented by the official client for a real cluster and by the in-memory API of the local run, so that both run the
same reconcile code. Objects are plain dicts as the API server sends them.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Obj = dict[str, Any]

FIELD_MANAGER = "roundhouse-operator"


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource kind; ``api_version`` is ``v1`` or ``group/version``."""

    api_version: str
    kind: str
    plural: str


INFERENCE_SERVICE = Kind("roundhouse.dev/v1alpha1", "InferenceService", "inferenceservices")
ENGINE_REPLICA = Kind("roundhouse.dev/v1alpha1", "EngineReplica", "enginereplicas")
POD = Kind("v1", "Pod", "pods")
SECRET = Kind("v1", "Secret", "secrets")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
EVENT = Kind("v1", "Event", "events")
POD_DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")


class ClusterError(Exception):
    """The API refused or did not answer. ``status`` is the HTTP status, 0 when there was no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFound(ClusterError):
    """404."""


class AlreadyExists(ClusterError):
    """409 on create: an object of that name is there (perhaps terminating)."""


class Conflict(ClusterError):
    """409 on apply or update: another field manager owns the field, or the resourceVersion is old."""


class Invalid(ClusterError):
    """422: the object breaks its schema; the message names the field."""


class Expired(ClusterError):
    """410: the watch's resourceVersion is too old; list again."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Obj


class Cluster(Protocol):
    """All methods raise `ClusterError` or a subclass of it. ``namespace`` None means all namespaces."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Obj:
        """Raises `NotFound`."""
        ...

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> tuple[list[Obj], str]:
        """Objects and the list's resourceVersion, from which a watch can go on."""
        ...

    async def create(self, kind: Kind, obj: Obj) -> Obj:
        """Raises `AlreadyExists` or `Invalid`."""
        ...

    async def apply(self, kind: Kind, obj: Obj, *, force: bool = False) -> Obj:
        """Server-side apply as `FIELD_MANAGER`; ``force`` takes fields from others. Raises `Conflict` or `Invalid`."""
        ...

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> None:
        """Done also when the object is gone already; with ``uid`` only that very object is deleted."""
        ...

    async def patch_status(self, kind: Kind, namespace: str, name: str, status: Obj, *, uid: str | None = None) -> Obj:
        """Replace the status subresource. Raises `NotFound`, or `Conflict` when the object has another ``uid``."""
        ...

    def watch(
        self, kind: Kind, namespace: str | None, resource_version: str, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """Changes after ``resource_version``. Raises `Expired` when the server no longer has them."""
        ...


async def find(cluster: Cluster, kind: Kind, namespace: str, name: str) -> Obj | None:
    """`Cluster.get`, with None for what is not there."""
    try:
        return await cluster.get(kind, namespace, name)
    except NotFound:
        return None
