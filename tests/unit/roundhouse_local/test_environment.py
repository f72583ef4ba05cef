import pytest
from roundhouse_local.errors import MissingSource
from roundhouse_local.kubelet.environment import PodFacts, base_environment, container_environment, expand
from roundhouse_local.kubelet.sources import Sources
from roundhouse_operator.cluster import Obj

POD: Obj = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a/b": "x"}, "annotations": {"n": "y"}},
    "spec": {"containers": []},
}
FACTS = PodFacts("127.1.2.3", "127.0.0.1", "node")
SOURCES = Sources("ns", {("secret", "s"): {"k": b"v"}, ("configmap", "m"): {"A": b"1", "B": b"2"}})


def env(*entries: Obj, **fields: Obj) -> dict[str, str]:
    return container_environment({"env": list(entries), **fields}, POD, FACTS, SOURCES)


def from_field(path: str) -> str:
    return env({"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}})["X"]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("$(A)/x", "1/x"),
        ("$$(A)", "$(A)"),
        ("$(NONE)", "$(NONE)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$$$(A)", "$1"),
        ("$(A)$(A)", "11"),
    ],
)
def test_references_are_expanded(text: str, want: str) -> None:
    assert expand(text, {"A": "1"}) == want


def test_entries_refer_to_earlier_ones_only() -> None:
    found = env({"name": "A", "value": "$(B)"}, {"name": "B", "value": "2"}, {"name": "C", "value": "$(B)"})
    assert found == {"A": "$(B)", "B": "2", "C": "2"}


def test_value_that_is_missing_is_empty() -> None:
    assert env({"name": "A"}) == {"A": ""}


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels['a/b']", "x"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['n']", "y"),
        ("spec.nodeName", "node"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.1.2.3"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_fields_of_the_pod(path: str, want: str) -> None:
    assert from_field(path) == want


def test_unknown_field_is_named() -> None:
    with pytest.raises(MissingSource, match=r"spec\.unknown"):
        from_field("spec.unknown")


def test_keys_of_secrets_and_config_maps() -> None:
    found = env(
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "M", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "A"}}},
    )
    assert found == {"S": "v", "M": "1"}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"secretKeyRef": {"name": "none", "key": "k"}}, 'secret "none" not found'),
        ({"secretKeyRef": {"name": "s", "key": "none"}}, "couldn't find key none in Secret ns/s"),
        ({"configMapKeyRef": {"name": "m", "key": "none"}}, "couldn't find key none in ConfigMap ns/m"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef is not supported"),
    ],
)
def test_missing_source_is_named(reference: Obj, message: str) -> None:
    with pytest.raises(MissingSource, match=message):
        env({"name": "X", "valueFrom": reference})


def test_optional_source_that_is_missing_leaves_the_variable_out() -> None:
    optional = {"name": "none", "key": "k", "optional": True}
    assert env({"name": "X", "valueFrom": {"secretKeyRef": optional}}) == {}


def test_env_from_takes_everything_with_a_prefix_and_env_wins() -> None:
    found = env(
        {"name": "P_A", "value": "own"},
        envFrom=[{"prefix": "P_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "no", "optional": True}}],
    )
    assert found == {"P_A": "own", "P_B": "2"}


def test_tokens_of_the_user_are_not_inherited() -> None:
    own = {"HF_TOKEN": "t", "PIP_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "t", "HOME": "/h", "PATH": "/bin", "OMP_X": "1"}
    assert base_environment(own, "/scripts").keys() == {"HOME", "PATH", "OMP_X", "PYTHONUNBUFFERED"}


def test_scripts_come_first_in_path_and_python_path_is_absolute() -> None:
    found = base_environment({"PATH": "/bin", "PYTHONPATH": "relative:/absolute"}, "/scripts")
    assert found["PATH"] == "/scripts:/bin"
    assert all(folder.startswith("/") for folder in found["PYTHONPATH"].split(":"))
