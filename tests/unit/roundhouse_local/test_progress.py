import io

from rich.console import Console
from roundhouse_kv.records import Lease, Progress
from roundhouse_local.supervisor.display import LiveDisplay, PlainDisplay, curl_line, open_display
from roundhouse_local.supervisor.progress import ReplicaView, ServiceView, service_view
from roundhouse_operator.cluster import Obj


def service(
    *, replicas: int | None = None, ready: str = "True", count: int = 1, observed: int = 1, **spec: object
) -> Obj:
    return {
        "metadata": {"name": "a", "namespace": "ns", "generation": 1},
        "spec": {"model": "hf://x/y", **spec} | ({} if replicas is None else {"replicas": replicas}),
        "status": {
            "observedGeneration": observed,
            "readyReplicas": count,
            "conditions": [{"type": "Ready", "status": ready, "reason": "R", "message": "m"}],
        },
    }


def replica(reason: str, message: str = "", ready: str = "False") -> Obj:
    condition = {"type": "Ready", "status": ready, "reason": reason, "message": message}
    return {"metadata": {"name": "a-1", "uid": "u"}, "status": {"conditions": [condition]}}


def lease(phase: str, done: int, total: int) -> Lease:
    step = Progress(phase=phase, done=done, total=total)  # type: ignore[arg-type]
    return Lease(replica="a-1", replica_uid="u", pod_uid="p", epoch=1, source=1, state="starting", progress=step)


def test_service_is_complete_with_as_many_replicas_as_wanted() -> None:
    assert service_view(service(), [], {}).complete
    assert service_view(service(replicas=2, count=2), [], {}).complete
    assert not service_view(service(replicas=2, count=1), [], {}).complete
    assert not service_view(service(ready="False"), [], {}).complete


def test_status_of_an_older_spec_completes_nothing() -> None:
    assert not service_view(service(observed=0), [], {}).complete


def test_service_without_a_status_is_shown() -> None:
    fresh = {"metadata": {"name": "a", "namespace": "ns", "generation": 1}, "spec": {}}
    view = service_view(fresh, [], {})
    assert (view.ready, view.complete, view.message) == (False, False, "")


def test_refused_service_says_why() -> None:
    refused = service()
    refused["status"]["conditions"].append(
        {"type": "Accepted", "status": "False", "reason": "ServedNameConflict", "message": "taken"}
    )
    assert service_view(refused, [], {}).reason == "ServedNameConflict"


def test_clients_name_is_the_first_served_one() -> None:
    assert service_view(service(), [], {}).model == "a"
    assert service_view(service(servedNames=["b", "c"]), [], {}).model == "b"


def test_progress_of_a_starting_replica_comes_from_its_lease() -> None:
    view = service_view(service(), [replica("FetchingModel")], {"u": lease("fetch", 25, 100)}).replicas[0]
    assert (view.text, view.milestone) == ("fetching model", "fetching model 20 %")


def test_failed_replica_shows_the_failure_and_no_old_progress() -> None:
    view = service_view(service(), [replica("ModelFetchFailed", "no such model")], {"u": lease("fetch", 1, 2)})
    assert view.replicas[0].text == "ModelFetchFailed: no such model"


def view(*replicas: ReplicaView) -> ServiceView:
    return ServiceView("ns/a", "a", False, False, "Starting", "", replicas)


STEPS = [
    view(ReplicaView("a-1", False, "Starting", "")),
    view(ReplicaView("a-1", False, "FetchingModel", "", "fetch", 1, 100)),
    view(ReplicaView("a-1", False, "FetchingModel", "", "fetch", 2, 100)),
    view(ReplicaView("a-1", False, "FetchingModel", "", "fetch", 55, 100)),
    view(ReplicaView("a-1", True, "Ready", "")),
]


def test_plain_display_says_each_milestone_once() -> None:
    out = io.StringIO()
    display = PlainDisplay(Console(file=out, width=20))
    for step in STEPS:
        display.show([step])
    assert out.getvalue().splitlines() == [
        "ns/a a-1: starting",
        "ns/a a-1: fetching model 0 %",
        "ns/a a-1: fetching model 50 %",
        "ns/a a-1: ready",
    ]


def test_terminal_gets_bars_then_lines_of_what_changes() -> None:
    out = io.StringIO()
    display = open_display(Console(file=out, force_terminal=True, width=100))
    assert isinstance(display, LiveDisplay)
    for step in STEPS:
        display.show([step])
    display.settle([STEPS[-1]])
    seen = len(out.getvalue())
    display.show([STEPS[-1]])
    assert len(out.getvalue()) == seen
    display.show([view(ReplicaView("a-1", False, "EngineCrashLoop", "no memory"))])
    assert "EngineCrashLoop: no memory" in out.getvalue()[seen:]
    display.close()


def test_output_that_is_no_terminal_is_plain() -> None:
    assert type(open_display(Console(file=io.StringIO()))) is PlainDisplay


def test_curl_line_is_one_command() -> None:
    line = curl_line("http://127.0.0.1:8080", "a")
    assert line.startswith("curl http://127.0.0.1:8080/v1/chat/completions ")
    assert '"model": "a"' in line
