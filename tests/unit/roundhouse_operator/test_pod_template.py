"""``spec.podTemplate``: what is merged how, and what is refused by name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_operator.api.parse import service_complaints
from roundhouse_operator.api.pod_overlay import overlay_complaints
from roundhouse_operator.overlay import merged, merged_pod

from tests.unit.roundhouse_operator.world import World, service

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"kind": "Pod"}, "spec.podTemplate.kind", "metadata and spec"),
    ({"spec": []}, "spec.podTemplate.spec", "object"),
    ({"metadata": {"name": "x"}}, "spec.podTemplate.metadata.name", "only labels and annotations"),
    ({"metadata": {"labels": {"a": 1}}}, "spec.podTemplate.metadata.labels", "texts"),
    ({"metadata": {"labels": {"roundhouse.dev/service": "x"}}}, "labels.roundhouse.dev/service", "another label"),
    ({"metadata": {"labels": {"app.kubernetes.io/managed-by": "x"}}}, "managed-by", "another label"),
    ({"spec": {"restartPolicy": "Never"}}, "spec.podTemplate.spec.restartPolicy", "restart in place"),
    ({"spec": {"terminationGracePeriodSeconds": 5}}, "terminationGracePeriodSeconds", "spec.drain.timeoutSeconds"),
    ({"spec": {"automountServiceAccountToken": True}}, "automountServiceAccountToken", "no token"),
    ({"spec": {"hostNetwork": True}}, "spec.podTemplate.spec.hostNetwork", "own address"),
    ({"spec": {"nodeName": "a"}}, "spec.podTemplate.spec.nodeName", "nodeSelector"),
    ({"spec": {"containers": {}}}, "spec.podTemplate.spec.containers", "list of objects"),
    ({"spec": {"containers": [{"image": "x"}]}}, "spec.podTemplate.spec.containers[0].name", "required"),
    ({"spec": {"containers": [{"name": "engine", "image": "x"}]}}, "containers[0].image", "spec.engine.image"),
    ({"spec": {"containers": [{"name": "engine", "args": ["x"]}]}}, "containers[0].args", "spec.engine.args"),
    ({"spec": {"containers": [{"name": "engine", "lifecycle": {}}]}}, "containers[0].lifecycle", "drains"),
    ({"spec": {"containers": [{"name": "agent"}]}}, "containers[0].name", "among initContainers"),
    ({"spec": {"initContainers": [{"name": "engine"}]}}, "initContainers[0].name", "among containers"),
    ({"spec": {"initContainers": [{"name": "agent", "image": "x"}]}}, "initContainers[0].image", "own"),
    ({"spec": {"containers": [{"name": "engine", "env": [{"name": "RH_X"}]}]}}, "env[0].name", "another name"),
    ({"spec": {"containers": [{"name": "engine", "env": {"A": "b"}}]}}, "containers[0].env", "list of objects"),
    ({"spec": {"containers": [{"name": "engine", "volumeMounts": [{"mountPath": "/models/x"}]}]}}, "/models/x", "path"),
    ({"spec": {"containers": [{"name": "engine", "volumeMounts": [{"mountPath": "/"}]}]}}, "mountPath", "another path"),
    ({"spec": {"volumes": [{"name": "models", "emptyDir": {}}]}}, "spec.podTemplate.spec.volumes[0]", "modelCache"),
    (
        {"spec": {"volumes": [{"name": "a", "$patch": "delete"}]}},
        "spec.podTemplate.spec.volumes[0].$patch",
        "directives",
    ),
]


@pytest.mark.parametrize(("overlay", "field", "fix"), REFUSED, ids=[field for _, field, _ in REFUSED])
def test_what_would_break_a_replica_is_refused_by_its_field(overlay: dict[str, Any], field: str, fix: str) -> None:
    text = "\n".join(service_complaints(service(podTemplate=overlay)))
    assert field in text
    assert fix in text


HARMLESS: list[dict[str, Any]] = [
    {},
    {"metadata": {"labels": {"team": "a"}, "annotations": {"x.dev/y": "z"}}},
    {"spec": {"priorityClassName": "high", "schedulerName": "other", "runtimeClassName": "nvidia"}},
    {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"a.dev/b": 1}}, "startupProbe": {}}]}},
    {"spec": {"containers": [{"name": "sidecar", "image": "x", "env": [{"name": "RH_X"}]}]}},
    {"spec": {"initContainers": [{"name": "warm", "image": "x"}, {"name": "fetch", "resources": {}}]}},
    {"spec": {"volumes": [{"name": "scratch", "emptyDir": {}}], "imagePullSecrets": [{"name": "registry"}]}},
]


@pytest.mark.parametrize("overlay", HARMLESS)
def test_everything_else_passes(overlay: dict[str, Any]) -> None:
    assert overlay_complaints(overlay) == []


def test_lists_of_named_things_are_merged_by_name() -> None:
    base = {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}
    overlay = {
        "containers": [{"name": "c"}, {"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "3"}]}]
    }
    assert merged(base, overlay) == {
        "containers": [
            {"name": "a", "env": [{"name": "X", "value": "3"}, {"name": "Y", "value": "2"}]},
            {"name": "b"},
            {"name": "c"},
        ]
    }


def test_a_null_takes_a_field_away() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}) == {"a": {"c": 2}}


def test_tolerations_are_added() -> None:
    ours, theirs = {"key": "nvidia.com/gpu"}, {"key": "spot"}
    assert merged({"tolerations": [ours]}, {"tolerations": [theirs, ours]}) == {"tolerations": [ours, theirs]}


def test_a_list_without_a_key_is_replaced() -> None:
    assert merged({"args": [1, 2]}, {"args": [3]}) == {"args": [3]}


def _affinity(*keys: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in keys]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


def test_a_node_affinity_holds_beside_that_of_the_gpu_type() -> None:
    both = merged_pod(_affinity("gpu"), _affinity("a", "b"))
    required = both["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    keys = [[item["key"] for item in term["matchExpressions"]] for term in required["nodeSelectorTerms"]]
    assert keys == [["a", "gpu"], ["b", "gpu"]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "spec", "env", "a", "$b"]), inner)
    ),
    max_leaves=15,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "x"]), JSON))
def test_no_overlay_makes_the_check_fail_itself(overlay: dict[str, Any]) -> None:
    assert all(line.startswith("spec.podTemplate") for line in overlay_complaints(overlay))


async def test_a_changed_overlay_rolls_the_replicas(world: World) -> None:
    await world.apply(service())
    await world.ready()
    (before,) = await world.replicas()
    await world.apply(service(podTemplate={"metadata": {"labels": {"team": "a"}}}))
    world.agents.answers["10.0.0.1"] = "drained"
    await world.ready()
    (after,) = await world.replicas()
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    (pod,) = await world.pods()
    assert pod["metadata"]["labels"]["team"] == "a"
