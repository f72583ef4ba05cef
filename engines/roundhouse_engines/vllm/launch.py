"""Launch line of vLLM (0.24 and later).

``python3 -m`` instead of the ``vllm`` script, which CPU builds do not carry. By default vLLM publishes no KV events,
tells no cached tokens in ``usage`` and does not drain on SIGTERM. An ``ipc://`` endpoint binds; many ``tcp://`` ones
connect instead.
"""

import json

from roundhouse_engines.launch import LaunchPlan, LaunchRequest
from roundhouse_engines.launch_args import gives, refuse_owned

_OWNED = (
    "--model", "--served-model-name", "--host", "--port", "--uds", "--kv-events-config", "--shutdown-timeout",
    "--api-key", "--enable-prompt-tokens-details", "--enable-request-id-headers", "--data-parallel-size",
    "-dp", "--headless",
)  # fmt: skip
_TENSOR_PARALLEL = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp")
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class VllmLaunch:
    kind = "vllm"
    image = "vllm/vllm-openai:v0.32.0"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        refuse_owned(request.args, _OWNED)
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": request.kv_events,
            "replay_endpoint": request.kv_replay,
            "topic": "kv-events",
        }
        argv = (
            *("python3", "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", request.model_path),
            *("--served-model-name", request.model_name),
            *("--host", request.host),
            *("--port", str(request.port)),
            *("--kv-events-config", json.dumps(events, separators=(",", ":"))),
            *("--shutdown-timeout", str(request.drain_seconds)),
            "--enable-prompt-tokens-details",
            "--enable-request-id-headers",
            *_tensor_parallel(request),
            *request.args,
        )
        return LaunchPlan(argv, {**_OFFLINE, **request.env}, health_path="/health", shutdown_seconds=20)


def _tensor_parallel(request: LaunchRequest) -> tuple[str, ...]:
    """All GPUs of the replica share one copy of the model, unless the user splits it otherwise."""
    if request.gpus < 2 or gives(request.args, _TENSOR_PARALLEL):
        return ()
    return ("--tensor-parallel-size", str(request.gpus))


LAUNCH = VllmLaunch()
