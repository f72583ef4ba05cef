"""Why a replica is not ready, from pods as kubelets report them."""

from typing import Any

import pytest
from roundhouse_kv.records import Progress
from roundhouse_operator.api.parse import parse_service
from roundhouse_operator.cluster import Obj
from roundhouse_operator.diagnosis import RETRY_GRACE_S, Diagnosis, diagnose
from roundhouse_operator.live import Live
from roundhouse_operator.pod_facts import ContainerFacts, Exit, last_line
from roundhouse_operator.reasons import Reason
from roundhouse_operator.render import render_pod, render_replica
from roundhouse_operator.replica_view import Fate, count_restarts, view_replicas
from roundhouse_operator.settings import Settings
from roundhouse_operator.timestamps import to_timestamp

from tests.unit.roundhouse_operator.world import START, lease, service

SETTINGS = Settings(installation="test", redis_url="redis://r:6379/0")
WAITING = {"waiting": {"reason": "PodInitializing"}}
RUNNING = {"running": {"startedAt": to_timestamp(START)}}
DONE = {"terminated": {"exitCode": 0, "finishedAt": to_timestamp(START)}}


def ended(code: int = 1, message: str = "", reason: str = "Error") -> Obj:
    return {"terminated": {"exitCode": code, "message": message, "reason": reason, "finishedAt": to_timestamp(START)}}


def replica_and_pod(**spec: Any) -> tuple[Obj, Obj]:
    obj = service(**spec)
    obj["metadata"] |= {"uid": "s", "creationTimestamp": to_timestamp(START)}
    replica = render_replica(parse_service(obj), "rev", "llama-abcde", SETTINGS)
    replica["metadata"] |= {"uid": "r", "creationTimestamp": to_timestamp(START)}
    replica["status"] = {"podUID": "p"}
    pod = render_pod(replica)
    pod["metadata"] |= {"uid": "p"}
    return replica, pod


def container(name: str, state: Obj, last: Obj | None = None, restarts: int = 0) -> Obj:
    return {"name": name, "state": state, "lastState": last or {}, "restartCount": restarts}


def diagnosis(
    agent: Obj = RUNNING,
    fetch: Obj | None = None,
    engine: Obj | None = None,
    *,
    progress: Progress | None = None,
    after: float = 0.0,
    spec: Obj | None = None,
    refusals: dict[str, str] | None = None,
    **status: Any,
) -> Diagnosis:
    replica, pod = replica_and_pod(**(spec or {}))
    containers = {
        "initContainerStatuses": [container("agent", agent), fetch or container("fetch", DONE)],
        "containerStatuses": [engine or container("engine", WAITING)],
    }
    pod["status"] = {"phase": "Pending", **containers, **status}
    leases = {"r": lease("r", "p", state="starting", progress=progress)}
    now = START + after
    (view,) = view_replicas([replica], [pod], Live(leases=leases), now, SETTINGS)
    return diagnose(view, now, refusals or {})


def unscheduled(message: str) -> list[Obj]:
    return [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]


def test_no_free_gpu() -> None:
    found = diagnosis(conditions=unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))
    assert found.reason is Reason.WAITING_FOR_GPU
    assert not found.stuck
    assert "3 Insufficient nvidia.com/gpu" in found.message
    assert "lower spec.resources.gpus" in found.message


def test_no_gpu_of_that_type() -> None:
    found = diagnosis(
        spec={"resources": {"gpuType": "H100"}},
        conditions=unscheduled("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."),
    )
    assert found.reason is Reason.WAITING_FOR_GPU
    assert "spec.resources.gpuType" in found.message


def test_no_node_with_enough_memory() -> None:
    found = diagnosis(spec={"resources": {"gpus": 0}}, conditions=unscheduled("0/3 nodes: 3 Insufficient memory."))
    assert found.reason is Reason.UNSCHEDULABLE
    assert "lower spec.resources" in found.message


def test_pulling_the_agents_image() -> None:
    found = diagnosis(agent=WAITING, fetch=container("fetch", WAITING))
    assert (found.reason, "roundhouse-agent" in found.message) == (Reason.PULLING_IMAGE, True)


def test_pulling_the_engines_image() -> None:
    found = diagnosis(spec={"engine": {"image": "my/engine:1"}})
    assert (found.reason, "my/engine:1" in found.message) == (Reason.PULLING_IMAGE, True)


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_an_image_that_cannot_be_pulled(reason: str) -> None:
    state = {"waiting": {"reason": reason, "message": "pull access denied\nfor roundhouse-engine"}}
    found = diagnosis(engine=container("engine", state))
    assert (found.reason, found.stuck) == (Reason.IMAGE_PULL_FAILED, True)
    assert "for roundhouse-engine" in found.message


def test_a_missing_secret_of_a_container() -> None:
    state = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}}
    found = diagnosis(fetch=container("fetch", state))
    assert found.reason is Reason.SECRET_NOT_FOUND
    assert 'secret "hub" not found — create it' in found.message


def test_another_container_configuration_error() -> None:
    state = {"waiting": {"reason": "CreateContainerConfigError", "message": "container has runAsNonRoot"}}
    found = diagnosis(engine=container("engine", state))
    assert (found.reason, "runAsNonRoot" in found.message) == (Reason.CONTAINER_CONFIG_ERROR, True)


def test_fetching_without_and_with_progress() -> None:
    fetch = container("fetch", RUNNING)
    assert diagnosis(fetch=fetch).message == "fetching the model"
    progress = Progress(phase="fetch", done=37 * 10**7, total=10**9)
    found = diagnosis(fetch=fetch, progress=progress)
    assert (found.reason, found.message) == (Reason.FETCHING_MODEL, "fetching the model: 30 % of 1.0 GB")
    assert "converting" in diagnosis(fetch=fetch, progress=Progress(phase="convert", done=5)).message


def test_progress_of_an_earlier_phase_is_not_shown() -> None:
    progress = Progress(phase="fetch", done=5, total=10)
    found = diagnosis(engine=container("engine", RUNNING), progress=progress)
    assert (found.reason, found.message) == (Reason.LOADING_MODEL, "the engine loads the model")


@pytest.mark.parametrize("state", [WAITING, RUNNING])
def test_a_failed_fetch_says_its_last_line(state: Obj) -> None:
    last = ended(message="Traceback\nrepository org/name does not exist: check spec.model\n")
    found = diagnosis(fetch=container("fetch", state, last, restarts=2))
    assert (found.reason, found.stuck) == (Reason.MODEL_FETCH_FAILED, True)
    assert "repository org/name does not exist: check spec.model" in found.message


def test_a_fetch_that_has_just_failed() -> None:
    assert diagnosis(fetch=container("fetch", ended(message="no"))).reason is Reason.MODEL_FETCH_FAILED


def test_a_fetch_that_goes_on_after_a_failure_is_fetching_again() -> None:
    found = diagnosis(fetch=container("fetch", RUNNING, ended(), restarts=1), after=RETRY_GRACE_S)
    assert found.reason is Reason.FETCHING_MODEL


@pytest.mark.parametrize(("phase", "text"), [("load", "loading the model: 50 %"), ("warmup", "warming up: 50 %")])
def test_loading_with_progress(phase: Any, text: str) -> None:
    found = diagnosis(engine=container("engine", RUNNING), progress=Progress(phase=phase, done=5000, total=10000))
    assert found.reason is Reason.LOADING_MODEL
    assert found.message == f"{text} of 10.0 kB"


def test_sizes_are_readable() -> None:
    for total, text in ((999, "999 B"), (5 * 10**6, "5.0 MB")):
        progress = Progress(phase="fetch", done=0, total=total)
        assert diagnosis(fetch=container("fetch", RUNNING), progress=progress).message.endswith(f"0 % of {text}")


def test_a_crashed_engine_says_its_last_line_and_where_to_look() -> None:
    found = diagnosis(engine=container("engine", ended(message="loading\nbad config.json: no layers"), restarts=3))
    assert (found.reason, found.stuck) == (Reason.ENGINE_CRASH_LOOP, True)
    assert "again and again: bad config.json: no layers" in found.message
    assert "container engine in pod llama-abcde" in found.message


def test_an_engine_out_of_memory_says_what_to_raise() -> None:
    found = diagnosis(engine=container("engine", WAITING, ended(137, reason="OOMKilled"), restarts=1))
    assert "out of memory" in found.message
    assert "raise spec.resources.memory" in found.message


def test_an_engine_without_last_words_gives_its_exit_code() -> None:
    assert "exit code 137" in diagnosis(engine=container("engine", ended(137))).message


def test_one_restart_that_loads_again_is_loading() -> None:
    found = diagnosis(engine=container("engine", RUNNING, ended(137), restarts=1))
    assert (found.reason, found.stuck) == (Reason.LOADING_MODEL, False)
    assert "after it ended once: killed (exit code 137)" in found.message


def test_an_agent_that_keeps_ending() -> None:
    replica, pod = replica_and_pod()
    agent = container("agent", ended(message="RH_REDIS_URL is not set"), restarts=2)
    pod["status"] = {"initContainerStatuses": [agent]}
    (view,) = view_replicas([replica], [pod], Live(), START, SETTINGS)
    found = diagnose(view, START, {})
    assert (found.reason, "RH_REDIS_URL is not set" in found.message) == (Reason.AGENT_CRASH_LOOP, True)


def test_a_pod_of_which_nothing_is_known_is_starting() -> None:
    replica, pod = replica_and_pod()
    (view,) = view_replicas([replica], [pod], Live(), START, SETTINGS)
    assert diagnose(view, START, {}).reason is Reason.STARTING


def test_a_container_without_a_last_exit_has_no_message() -> None:
    replica, pod = replica_and_pod()
    pod["status"] = {"initContainerStatuses": [container("agent", WAITING, restarts=2)]}
    (view,) = view_replicas([replica], [pod], Live(), START, SETTINGS)
    assert "no message" in diagnose(view, START, {}).message


def test_an_evicted_pod() -> None:
    found = diagnosis(phase="Failed", reason="Evicted", message="The node was low on resource: memory.")
    assert (found.reason, found.stuck) == (Reason.POD_FAILED, True)
    assert "low on resource: memory" in found.message


@pytest.mark.parametrize(
    ("said", "reason"), [("exceeded quota: gpus", Reason.QUOTA_EXCEEDED), ("violates policy", Reason.CREATE_REFUSED)]
)
def test_a_refused_pod(said: str, reason: Reason) -> None:
    replica, _ = replica_and_pod()
    replica["status"] = {}
    (view,) = view_replicas([replica], [], Live(), START, SETTINGS)
    assert view.fate is Fate.NEW
    found = diagnose(view, START, {"llama-abcde": said})
    assert (found.reason, said in found.message) == (reason, True)


@pytest.mark.parametrize(
    ("state", "fate", "reason"),
    [
        ("no pod yet", Fate.NEW, Reason.STARTING),
        ("pod gone", Fate.GONE, Reason.POD_GONE),
        ("replica deleted", Fate.STOPPING, Reason.TERMINATING),
        ("pod deleted", Fate.STOPPING, Reason.TERMINATING),
        ("pod overdue", Fate.OVERDUE, Reason.NODE_LOST),
        ("hung", Fate.HUNG, Reason.ENGINE_HUNG),
        ("ready", Fate.LIVE, Reason.READY),
        ("draining", Fate.LIVE, Reason.DRAINING),
    ],
)
def test_fates(state: str, fate: Fate, reason: Reason) -> None:
    replica, pod = replica_and_pod()
    pods, leases = [pod], {}
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    if state == "no pod yet":
        pods, replica["status"] = [], {}
    elif state == "pod gone":
        pods = []
    elif state == "replica deleted":
        pods, replica["metadata"]["deletionTimestamp"] = [], to_timestamp(START)
    elif state == "pod deleted":
        pod["metadata"]["deletionTimestamp"] = to_timestamp(START + 60)
    elif state == "pod overdue":
        pod["metadata"]["deletionTimestamp"] = to_timestamp(START - 31)
    elif state == "hung":
        leases = {"r": lease("r", "p", hung=True)}
    elif state == "draining":
        replica["spec"]["drain"] = {"deadline": to_timestamp(START + 60)}
    (view,) = view_replicas([replica], pods, Live(leases=leases), START, SETTINGS)
    assert (view.fate, diagnose(view, START, {}).reason) == (fate, reason)


def test_a_hung_lease_of_another_pod_or_from_a_dead_redis_counts_for_nothing() -> None:
    replica, pod = replica_and_pod()
    for live in (
        Live(leases={"r": lease("r", "other", hung=True)}),
        Live(leases={"r": lease("r", "p", hung=True)}, healthy=False),
    ):
        (view,) = view_replicas([replica], [pod], live, START, SETTINGS)
        assert view.fate is Fate.LIVE


def test_restarts_are_counted_in_windows() -> None:
    def facts(restarts: int, at: float | None) -> ContainerFacts:
        return ContainerFacts(restarts=restarts, last_exit=Exit(1, "", "", at))

    assert count_restarts(None, facts(0, None), START, 900) is None
    first = count_restarts(None, facts(3, START), START, 900)
    assert first == {"count": 3, "windowStart": to_timestamp(START), "windowBase": 2}
    same = count_restarts(first, facts(3, START + 5), START, 900)
    assert same is first
    second = count_restarts(first, facts(4, START + 900), START, 900)
    assert second == {"count": 4, "windowStart": to_timestamp(START), "windowBase": 2}
    later = count_restarts(second, facts(5, None), START + 901, 900)
    assert later == {"count": 5, "windowStart": to_timestamp(START + 901), "windowBase": 4}


def test_last_line_skips_blank_ones_and_is_bounded() -> None:
    assert last_line("a\n b \n\n") == "b"
    assert last_line("") == ""
    assert len(last_line("x" * 1000)) == 300


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ('persistentvolumeclaim "models" not found', "create the claim of spec.modelCache"),
        ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "kubectl describe pvc"),
        ("0/3 nodes are available: 3 node(s) had volume node affinity conflict.", "ReadWriteMany"),
    ],
)
def test_a_claim_without_a_volume(message: str, remedy: str) -> None:
    found = diagnosis(conditions=unscheduled(message), spec={"resources": {"gpus": 1}})
    assert (found.reason, found.stuck) == (Reason.VOLUME_PENDING, False)
    assert message in found.message
    assert remedy in found.message


def test_an_engine_that_the_node_kills_again_and_again() -> None:
    last = ended(137, message="INFO request started")
    found = diagnosis(engine=container("engine", WAITING, last, restarts=3))
    assert found.reason is Reason.ENGINE_CRASH_LOOP
    assert "INFO request started; it was killed (exit code 137)" in found.message
    assert "did not answer /health for a minute" in found.message
