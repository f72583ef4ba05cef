"""Launch line of the bundled engine."""

from roundhouse_engines.errors import BadEngineSpec
from roundhouse_engines.launch import LaunchPlan, LaunchRequest
from roundhouse_engines.launch_args import refuse_owned

_OWNED = ("--model", "--served-model-name", "--host", "--port", "--kv-events", "--kv-replay", "--shutdown-timeout")


class TorchLaunch:
    kind = "torch"
    image = "roundhouse-engine"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        if request.gpus > 1:
            raise BadEngineSpec(
                f"spec.resources.gpus is {request.gpus}, but engine torch takes one GPU; set 0 or 1, or use engine vllm"
            )
        refuse_owned(request.args, _OWNED)
        argv = (
            "roundhouse-engine",
            *("--model", request.model_path),
            *("--served-model-name", request.model_name),
            *("--host", request.host),
            *("--port", str(request.port)),
            *("--kv-events", request.kv_events),
            *("--kv-replay", request.kv_replay),
            *("--shutdown-timeout", str(request.drain_seconds)),
            *request.args,
        )
        return LaunchPlan(argv, dict(request.env), health_path="/health", shutdown_seconds=10)


LAUNCH = TorchLaunch()
