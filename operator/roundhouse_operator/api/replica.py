"""``EngineReplica``: one running copy of a model, made and owned by the operator. One immutable spec, one life."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from roundhouse_operator.api.meta import Conditions, ObjectMeta, Timestamp
from roundhouse_operator.api.rules import ApiModel, Rule, Transition

_FROZEN = ("service", "revision", "engine", "engineModel", "model", "gpuType", "template")


class ReplicaDrain(ApiModel):
    """The replica is being emptied before it stops."""

    deadline: Timestamp
    """When requests still in flight are given up."""


class EngineReplicaSpec(ApiModel):
    """The frozen recipe of one replica. Only drain ever changes."""

    service: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the InferenceService that owns this replica."""
    revision: Annotated[str, Field(min_length=1, max_length=63)]
    """Revision of the InferenceService that it was made from."""
    replicas: int
    """Always 1; it is here because disruption budgets read it through the scale subresource."""
    engine: Annotated[str, Field(min_length=1, max_length=63)]
    """Engine kind."""
    engine_model: Annotated[str, Field(min_length=1, max_length=253)]
    """Model name that the engine itself answers to."""
    model: Annotated[str, Field(max_length=1024)]
    """Model URI; empty for engines without a model."""
    gpu_type: Annotated[str, Field(max_length=63)]
    """GPU product asked for; empty for any."""
    template: dict[str, Any]
    """Template of the pod: metadata.labels and spec."""
    drain: ReplicaDrain | None = None
    """Set while the replica is being emptied before it stops."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.replicas == 1",
            "spec.replicas of an EngineReplica is always 1; scale its InferenceService instead",
            lambda self: self.replicas == 1,
            "replicas",
        ),
    )
    transitions: ClassVar[tuple[Transition, ...]] = tuple(
        Transition(name, f"spec.{name} of an EngineReplica never changes; change its InferenceService instead")
        for name in _FROZEN
    )


class Restarts(ApiModel):
    """Restarts of the engine in place, to tell a crash loop from an old replica."""

    count: int = 0
    """Restarts seen so far."""
    window_start: Timestamp
    """When the current window of counting began."""
    window_base: int = 0
    """Restarts before that window."""


class EngineReplicaStatus(ApiModel):
    """What is known of the replica."""

    observed_generation: int = 0
    """The metadata.generation that this status was worked out for."""
    conditions: Conditions = Field(default_factory=list)
    """Ready, with the reason why not."""
    pod_name: str | None = None
    """Name of its pod."""
    pod_uid: Annotated[str | None, Field(alias="podUID")] = None
    """UID of its pod. Set once: it tells a pod that is gone from one that never was."""
    address: str | None = None
    """IP address of its pod."""
    ready_time: Timestamp | None = None
    """When it was first ready; from then on gateways know it."""
    replicas: int = 0
    """1 while the pod exists."""
    restarts: Restarts | None = None
    """Restarts of the engine, once there were any."""
    stack: dict[str, str] | None = None
    """What really runs, as the engine discloses it: engine, version, KV dtype, block size and so on."""


class EngineReplica(ApiModel):
    """One running copy of a model: one pod with an engine and its agent. Made by the operator; do not edit."""

    api_version: str
    kind: Literal["EngineReplica"]
    metadata: ObjectMeta
    spec: EngineReplicaSpec
    """The frozen recipe of the replica."""
    status: dict[str, Any] = Field(default_factory=dict)
    """What is known of the replica."""
