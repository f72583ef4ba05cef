"""Launch line of the simulated engine: as the bundled one, without a model."""

from roundhouse_engines.launch import LaunchPlan, LaunchRequest
from roundhouse_engines.launch_args import refuse_owned

_OWNED = ("--served-model-name", "--host", "--port", "--kv-events", "--kv-replay", "--shutdown-timeout")


class SimLaunch:
    kind = "sim"
    image = "roundhouse-sim"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        refuse_owned(request.args, _OWNED)
        argv = (
            "roundhouse-sim",
            *("--served-model-name", request.model_name),
            *("--host", request.host),
            *("--port", str(request.port)),
            *("--kv-events", request.kv_events),
            *("--kv-replay", request.kv_replay),
            *("--shutdown-timeout", str(request.drain_seconds)),
            *request.args,
        )
        return LaunchPlan(argv, dict(request.env), health_path="/health", shutdown_seconds=5, needs_model=False)


LAUNCH = SimLaunch()
