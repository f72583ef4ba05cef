"""A service's spec with the installation's defaults filled in, and the launch line that follows from it. Pure."""

from dataclasses import dataclass

from roundhouse_engines.errors import BadEngineSpec
from roundhouse_engines.launch import ENGINE_PORT, LaunchPlan, LaunchRequest, load_launch

from roundhouse_operator.api.service import InferenceService, InferenceServiceSpec
from roundhouse_operator.names import MODELS_DIR, model_slug
from roundhouse_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class Effective:
    """A spec with the installation's defaults filled in."""

    spec: InferenceServiceSpec
    engine: str
    gpus: int
    gpu_type: str
    drain_s: int

    @property
    def model_path(self) -> str:
        """Folder of the model inside the pods; empty without a model."""
        return f"{MODELS_DIR}/{model_slug(self.spec.model)}" if self.spec.model else ""

    @property
    def args(self) -> tuple[str, ...]:
        return tuple((self.spec.engine and self.spec.engine.args) or ())

    @property
    def env(self) -> dict[str, str]:
        return {item.name: item.value for item in (self.spec.engine and self.spec.engine.env) or ()}


def effective(spec: InferenceServiceSpec, settings: Settings) -> Effective:
    resources = spec.resources
    gpus = resources.gpus if resources else None
    timeout = spec.drain.timeout_seconds if spec.drain else None
    return Effective(
        spec=spec,
        engine=(spec.engine and spec.engine.name) or settings.default_engine,
        gpus=settings.default_gpus if gpus is None else gpus,
        gpu_type=(resources and resources.gpu_type) or "",
        drain_s=settings.drain_s if timeout is None else timeout,
    )


def engine_image(wanted: Effective, settings: Settings) -> str:
    """Raises `BadEngineSpec` when a version is asked for of an image that has none."""
    engine, image = wanted.spec.engine, settings.image(wanted.engine)
    if engine and engine.image:
        return engine.image
    if not (engine and engine.version):
        return image
    if "@" in image:
        raise BadEngineSpec(
            f"spec.engine.version: this installation's image {image} is pinned by digest; use spec.engine.image"
        )
    head, slash, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    lead = "v" if tag.startswith("v") and not engine.version.startswith("v") else ""
    return f"{head}{slash}{name}:{lead}{engine.version}"


def launch_plan(service: InferenceService, settings: Settings) -> LaunchPlan:
    """Raises `BadEngineSpec` when the engine cannot be started like this."""
    wanted = effective(service.spec, settings)
    engine_image(wanted, settings)
    return load_launch(wanted.engine).plan(
        LaunchRequest(
            model_path=wanted.model_path,
            model_name=service.metadata.name,
            host="$(POD_IP)",
            port=ENGINE_PORT,
            kv_events="ipc://$(RUN_DIR)/kv-events.sock",
            kv_replay="ipc://$(RUN_DIR)/kv-replay.sock",
            gpus=wanted.gpus,
            drain_seconds=wanted.drain_s,
            args=wanted.args,
            env=wanted.env,
        )
    )
