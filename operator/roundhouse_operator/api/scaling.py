"""``spec.scaling`` and what the status says about it."""

from typing import Annotated, ClassVar

from pydantic import Field

from roundhouse_operator.api.meta import Timestamp
from roundhouse_operator.api.rules import ApiModel, Rule


class Scaling(ApiModel):
    """The operator chooses the number of replicas. Of several signals the largest wish counts."""

    min: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Replicas that there are always, by default 1."""
    max: Annotated[int, Field(ge=1, le=1000)]
    """Replicas that there are at most."""
    queue_depth: Annotated[int, Field(ge=1, le=100000)] | None = None
    """Requests that may wait for each replica, by default 4. When more wait, replicas are added at once, as many as
    bring the queues back to this depth."""
    kv_usage: Annotated[int, Field(ge=1, le=100)] | None = None
    """Percent of the KV cache that running requests may hold, on average over the replicas, by default 80."""
    scale_down_delay_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    """Seconds for which fewer replicas must have been enough before one is drained and stopped, by default 300."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.min) ? self.min : 1) <= self.max",
            "scaling.min must not be greater than scaling.max; lower scaling.min or raise scaling.max",
            lambda self: (self.min or 1) <= self.max,
            "min",
        ),
    )


class ScalingDecision(ApiModel):
    """One change of the number of replicas."""

    time: Timestamp
    """When it was decided."""
    replicas: int
    """Replicas from then on."""
    previous: int
    """Replicas before."""
    reason: Annotated[str, Field(max_length=64)]
    """Why, as a stable CamelCase word: QueueDepth, KVUsage, LowLoad, Bounds, Started."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """Why, for people, with the figures that were seen."""


class ScalingStatus(ApiModel):
    """What spec.scaling has come to."""

    replicas: int
    """Replicas that were decided on last."""
    decisions: Annotated[
        list[ScalingDecision], Field(max_length=5, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """The last decisions, the newest first."""
