from roundhouse_local.kubelet.pod_status import PodView, pod_phase, pod_status
from roundhouse_local.kubelet.records import ContainerRecord, Running, State, Terminated, Waiting
from roundhouse_operator.cluster import Obj

DONE, FAILED = Terminated(0, "Completed", 1, 2), Terminated(1, "Error", 1, 2, "why", 0)


def record(name: str, role: str, state: State | None = None, **fields: object) -> ContainerRecord:
    found = ContainerRecord({"name": name, "image": "x"}, role)  # type: ignore[arg-type]
    found.state = state or Waiting("PodInitializing")
    for field, value in fields.items():
        setattr(found, field, value)
    return found


def view(*records: ContainerRecord, over: bool = False) -> PodView:
    init = [r for r in records if r.role != "main"]
    return PodView(init, [r for r in records if r.role == "main"], "127.1.1.1", "127.0.0.1", 0, True, over)


def conditions(status: Obj) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


RUNNING = {"state": Running(1), "container_id": "process://1", "started": True}


def test_pod_is_pending_until_every_main_container_was_started() -> None:
    assert pod_phase(view(record("a", "main", **RUNNING), record("b", "main"))) == "Pending"
    assert pod_phase(view(record("a", "main", **RUNNING))) == "Running"


def test_pod_with_a_crashing_container_is_running() -> None:
    crashed = record("a", "main", Waiting("CrashLoopBackOff"), container_id="process://1")
    assert pod_phase(view(crashed)) == "Running"


def test_pod_that_is_over_succeeded_only_if_all_did() -> None:
    assert pod_phase(view(record("a", "main", DONE), over=True)) == "Succeeded"
    assert pod_phase(view(record("a", "main", DONE), record("b", "main", FAILED), over=True)) == "Failed"


def test_initialised_needs_sidecars_started_and_init_containers_done() -> None:
    side, init, main = record("s", "sidecar", **RUNNING), record("i", "init", DONE), record("m", "main")
    assert conditions(pod_status(view(side, init, main), {}, 0))["Initialized"] == "True"
    side.started = False
    status = pod_status(view(side, init, main), {}, 0)
    message = next(c["message"] for c in status["conditions"] if c["type"] == "Initialized")
    assert message == "containers with incomplete status: [s]"


def test_restarting_sidecar_does_not_undo_the_initialisation() -> None:
    side = record("s", "sidecar", Waiting("CrashLoopBackOff"))
    found = conditions(pod_status(view(side, record("m", "main", **RUNNING, ready=True)), {}, 0))
    assert (found["Initialized"], found["Ready"]) == ("True", "False")


def test_transition_time_moves_only_with_the_status() -> None:
    main = record("m", "main", **RUNNING)
    first = pod_status(view(main), {}, 0)
    second = pod_status(view(main), first, 100)
    assert first["conditions"] == second["conditions"]
    main.ready = True
    third = {c["type"]: c["lastTransitionTime"] for c in pod_status(view(main), second, 200)["conditions"]}
    assert (third["Ready"], third["Initialized"]) == ("1970-01-01T00:03:20Z", "1970-01-01T00:00:00Z")


def test_conditions_of_others_stay() -> None:
    before = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    assert conditions(pod_status(view(record("m", "main")), before, 0))["PodScheduled"] == "True"


def test_last_state_and_message_are_shown() -> None:
    crashed = record("a", "main", Waiting("CrashLoopBackOff", "back-off"), container_id="x", restarts=2, last=FAILED)
    found = pod_status(view(crashed), {}, 0)["containerStatuses"][0]
    assert found["restartCount"] == 2
    assert found["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    assert found["lastState"]["terminated"]["message"] == "why"
