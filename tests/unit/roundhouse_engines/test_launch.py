"""Launch lines of the engine kinds."""

import json
from dataclasses import replace

import pytest
from roundhouse_engines.errors import BadEngineSpec, UnknownEngine
from roundhouse_engines.launch import ENGINE_KINDS, LaunchRequest, load_launch

REQUEST = LaunchRequest(
    model_path="/models/m",
    model_name="llama",
    host="$(POD_IP)",
    port=8000,
    kv_events="ipc://$(RUN_DIR)/kv-events.sock",
    kv_replay="ipc://$(RUN_DIR)/kv-replay.sock",
    gpus=1,
    drain_seconds=120,
    args=("--extra", "1"),
    env={"A": "b"},
)


@pytest.mark.parametrize("kind", ENGINE_KINDS)
def test_every_kind_gives_what_the_operator_and_the_agent_rely_on(kind: str) -> None:
    plan = load_launch(kind).plan(REQUEST)
    argv = list(plan.argv)
    for flag, value in (
        ("--served-model-name", "llama"), ("--host", "$(POD_IP)"), ("--port", "8000"), ("--shutdown-timeout", "120"),
    ):  # fmt: skip
        assert argv[argv.index(flag) + 1] == value
    assert argv[-2:] == ["--extra", "1"]
    assert plan.env["A"] == "b"
    assert plan.health_path == "/health"
    assert plan.shutdown_seconds > 0
    assert load_launch(kind).kind == kind


@pytest.mark.parametrize("kind", ["torch", "vllm"])
def test_engines_with_a_model_are_given_its_folder(kind: str) -> None:
    plan = load_launch(kind).plan(REQUEST)
    assert plan.needs_model
    assert plan.argv[plan.argv.index("--model") + 1] == "/models/m"


def test_sim_needs_no_model() -> None:
    plan = load_launch("sim").plan(REQUEST)
    assert not plan.needs_model
    assert "--model" not in plan.argv


@pytest.mark.parametrize("kind", ["torch", "sim"])
def test_own_engines_take_both_event_endpoints(kind: str) -> None:
    argv = load_launch(kind).plan(REQUEST).argv
    assert argv[argv.index("--kv-events") + 1] == REQUEST.kv_events
    assert argv[argv.index("--kv-replay") + 1] == REQUEST.kv_replay


def test_vllm_publishes_kv_events_and_cached_tokens() -> None:
    argv = load_launch("vllm").plan(REQUEST).argv
    config = json.loads(argv[argv.index("--kv-events-config") + 1])
    assert config["enable_kv_cache_events"] is True
    assert config["publisher"] == "zmq"
    assert (config["endpoint"], config["replay_endpoint"]) == (REQUEST.kv_events, REQUEST.kv_replay)
    assert "--enable-prompt-tokens-details" in argv
    assert "--enable-request-id-headers" in argv


def test_vllm_may_not_reach_a_hub_unless_the_user_says_so() -> None:
    assert load_launch("vllm").plan(REQUEST).env["HF_HUB_OFFLINE"] == "1"
    allowed = replace(REQUEST, env={"HF_HUB_OFFLINE": "0"})
    assert load_launch("vllm").plan(allowed).env["HF_HUB_OFFLINE"] == "0"


def test_vllm_splits_the_model_over_its_gpus() -> None:
    argv = load_launch("vllm").plan(replace(REQUEST, gpus=4)).argv
    assert argv[argv.index("--tensor-parallel-size") + 1] == "4"
    assert "--tensor-parallel-size" not in load_launch("vllm").plan(REQUEST).argv


@pytest.mark.parametrize("own", [("-tp=2",), ("--tensor_parallel_size", "2"), ("--pipeline-parallel-size=4",)])
def test_vllm_leaves_the_split_to_users_who_give_one(own: tuple[str, ...]) -> None:
    argv = load_launch("vllm").plan(replace(REQUEST, gpus=4, args=own)).argv
    assert argv.count("--tensor-parallel-size") == 0


@pytest.mark.parametrize("kind", ENGINE_KINDS)
@pytest.mark.parametrize("arg", ["--port", "--host=0.0.0.0", "--served_model_name", "--shutdown-timeout"])
def test_flags_of_roundhouse_are_refused_with_the_fix(kind: str, arg: str) -> None:
    with pytest.raises(BadEngineSpec, match=r"spec\.engine\.args must not hold --.*remove it"):
        load_launch(kind).plan(replace(REQUEST, args=("--ok", arg)))


def test_torch_refuses_more_than_one_gpu_with_the_fix() -> None:
    with pytest.raises(BadEngineSpec, match=r"spec\.resources\.gpus is 2.*use engine vllm"):
        load_launch("torch").plan(replace(REQUEST, gpus=2))


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownEngine, match="llamacpp"):
        load_launch("llamacpp")
