import pytest
from roundhouse_local.supervisor.tables import POD_COLUMNS, age, aligned, crd_columns, find, header, row
from roundhouse_operator.api.crds import crds
from roundhouse_operator.cluster import Obj

CRDS = {crd["spec"]["names"]["kind"]: crd_columns(crd) for crd in crds().values()}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (330, "5m30s"), (600, "10m"), (10799, "179m"), (10800, "3h"),
        (11100, "3h5m"), (28800, "8h"), (172799, "47h"), (172800, "2d"), (190000, "2d4h"), (691200, "8d"),
    ],
)  # fmt: skip
def test_age_as_kubectl_writes_it(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("path", "want"),
    [
        (".a.b", 1),
        (".a.none", None),
        (".none.b", None),
        ('.c[?(@.type=="Ready")].status', "True"),
        ('.c[?(@.type=="None")].status', None),
        (".c[0].type", "Other"),
        (".c[9].type", None),
        (".a[0]", None),
    ],
)
def test_path_is_followed(path: str, want: object) -> None:
    obj = {"a": {"b": 1}, "c": [{"type": "Other"}, {"type": "Ready", "status": "True"}]}
    assert find(obj, path) == want


def test_service_is_shown_by_the_columns_of_its_crd() -> None:
    service: Obj = {
        "metadata": {"name": "a", "namespace": "ns", "creationTimestamp": "1970-01-01T00:00:00Z"},
        "spec": {"model": "hf://x/y"},
        "status": {"replicas": 0, "conditions": [{"type": "Ready", "status": "False", "reason": "LoadingModel"}]},
    }
    columns = CRDS["InferenceService"]
    titles = header(columns, wide=False, namespaced=True)
    cells = dict(zip(titles, row(service, columns, 60, wide=False, namespaced=True), strict=True))
    assert cells["NAMESPACE"] == "ns"
    assert cells["MODEL"] == "hf://x/y"
    assert (cells["READY"], cells["REASON"], cells["REPLICAS"], cells["AGE"]) == ("False", "LoadingModel", "0", "60s")
    assert cells["URL"] == ""
    assert set(header(columns, wide=True, namespaced=False)) - set(titles) >= {"MESSAGE", "REVISION"}


def pod_row(status: Obj, **metadata: object) -> list[str]:
    spec = {
        "initContainers": [{"name": "agent", "restartPolicy": "Always"}, {"name": "fetch"}],
        "containers": [{"name": "engine"}],
    }
    meta = {"name": "p", "creationTimestamp": "1970-01-01T00:00:00Z", **metadata}
    return row({"metadata": meta, "spec": spec, "status": status}, POD_COLUMNS, 0, wide=False, namespaced=False)[1:4]


def container(name: str, state: Obj, **fields: object) -> Obj:
    return {"name": name, "state": state, "ready": False, "restartCount": 0, **fields}


RUNNING = {"running": {}}
INIT_DONE = container("fetch", {"terminated": {"exitCode": 0, "reason": "Completed"}}, ready=True)
AGENT = container("agent", RUNNING, ready=True, started=True, restartCount=2)
WAITS = {"waiting": {"reason": "PodInitializing"}}


@pytest.mark.parametrize(
    ("inits", "main", "want"),
    [
        ([AGENT, INIT_DONE], container("engine", RUNNING, ready=True), ["2/2", "Running", "2"]),
        ([AGENT, container("fetch", RUNNING)], container("engine", WAITS), ["1/2", "Init:1/2", "2"]),
        ([container("agent", RUNNING)], container("engine", WAITS), ["0/2", "Init:0/1", "0"]),
        (
            [AGENT, container("fetch", {"waiting": {"reason": "CrashLoopBackOff"}})],
            container("engine", WAITS),
            ["1/2", "Init:CrashLoopBackOff", "2"],
        ),
        (
            [AGENT, container("fetch", {"terminated": {"exitCode": 1, "reason": "Error"}})],
            container("engine", WAITS),
            ["1/2", "Init:Error", "2"],
        ),
        (
            [AGENT, INIT_DONE],
            container("engine", {"waiting": {"reason": "CrashLoopBackOff"}}, restartCount=3),
            ["1/2", "CrashLoopBackOff", "5"],
        ),
    ],
)
def test_pod_shows_the_most_telling_word(inits: list[Obj], main: Obj, want: list[str]) -> None:
    status = {"phase": "Running", "initContainerStatuses": inits, "containerStatuses": [main]}
    assert pod_row(status) == want


def test_unscheduled_and_terminating_pods() -> None:
    assert pod_row({"phase": "Pending"}) == ["0/2", "Pending", "0"]
    assert pod_row({"phase": "Running"}, deletionTimestamp="x")[1] == "Terminating"


def test_columns_stand_below_each_other() -> None:
    assert aligned([["A", "B"], ["long", "x"]]) == ["A      B", "long   x"]
