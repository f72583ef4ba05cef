"""What the real API server makes of the generated CRDs."""

import json
from typing import Any

import pytest

from tests.cluster.kube import CommandFailed, Kube, Obj

pytestmark = pytest.mark.usefixtures("crds")

KINDS = {"infsvc": "inferenceservices.roundhouse.dev", "erep": "enginereplicas.roundhouse.dev"}


def service(name: str, **spec: Any) -> Obj:
    return {
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.mark.parametrize("name", KINDS.values())
def test_crd_is_established_with_a_structural_schema(kube: Kube, name: str) -> None:
    conditions = {c["type"]: c for c in kube.get("crd", name)["status"]["conditions"]}
    assert conditions["Established"]["status"] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("path", ["infsvc.spec", "infsvc.status", "infsvc.spec.engine", "erep.spec", "erep.status"])
def test_every_field_is_explained(kube: Kube, path: str) -> None:
    text = kube.kubectl("explain", path)
    fields = text.partition("FIELDS:\n")[2]
    assert "\t<" in fields
    assert "<no description>" not in text


def test_the_shortest_service_is_accepted_as_it_was_written(kube: Kube) -> None:
    kube.create(service("shortest", model="hf://meta-llama/Llama-3.1-8B-Instruct"))
    stored = kube.get("infsvc", "shortest")
    kube.delete("infsvc", "shortest")
    assert stored["spec"] == {"model": "hf://meta-llama/Llama-3.1-8B-Instruct"}


def test_columns_are_those_that_people_look_for(kube: Kube) -> None:
    kube.create(service("columns", model="hf://org/name"))
    header = kube.kubectl("get", "infsvc").splitlines()[0].split()
    kube.delete("infsvc", "columns")
    assert header == ["NAME", "MODEL", "ENGINE", "READY", "REPLICAS", "URL", "AGE", "REASON"]


def test_scale_subresource_works_when_replicas_are_given(kube: Kube) -> None:
    kube.create(service("scaled", model="hf://org/name", replicas=1))
    kube.kubectl("scale", "infsvc/scaled", "--replicas=3")
    stored = kube.get("infsvc", "scaled")
    kube.delete("infsvc", "scaled")
    assert stored["spec"]["replicas"] == 3


def test_unknown_field_is_refused_by_name(kube: Kube) -> None:
    with pytest.raises(CommandFailed, match=r'unknown field "spec.modle"'):
        kube.create(service("typo", model="hf://org/name", modle="x"))


def test_status_is_not_written_through_the_object(kube: Kube) -> None:
    kube.create({**service("status", model="hf://org/name"), "status": {"url": "http://example.com"}})
    stored = kube.get("infsvc", "status")
    kube.delete("infsvc", "status")
    assert "url" not in stored.get("status", {})


def test_categories_list_both_kinds(kube: Kube) -> None:
    listed = json.loads(kube.kubectl("get", "--raw", "/apis/roundhouse.dev/v1alpha1"))
    kinds = {r["name"] for r in listed["resources"] if "inference" in r.get("categories", [])}
    assert kinds == {"inferenceservices", "enginereplicas"}
