"""What both resources share: metadata as far as the operator reads it, and conditions."""

from typing import Annotated, Literal

from pydantic import Field

from roundhouse_operator.api.rules import ApiModel

MAX_NAME = 52  # plus a dash and five characters makes the names of EngineReplicas and pods, which end up in labels (63)

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class ObjectMeta(ApiModel):
    """Standard object metadata."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class Condition(ApiModel):
    """One aspect of the object's state."""

    type: Annotated[str, Field(max_length=64)]
    """What this condition is about; unique within the list."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(min_length=1, max_length=64, pattern="^[A-Za-z]([A-Za-z0-9]*)$")]
    """Why, as a stable CamelCase word that programs may test."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """Why, for people, with the remedy."""
    last_transition_time: Timestamp
    """When the status (not the reason) changed last."""
    observed_generation: int = 0
    """The metadata.generation that this condition was worked out for."""


Conditions = Annotated[
    list[Condition],
    Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
]
