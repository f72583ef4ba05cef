"""The table of invalid objects that the models are tested with, against schema and CEL of the real API server."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.kube import ROOT, CommandFailed, Kube, Obj

pytestmark = pytest.mark.usefixtures("crds")

Row = dict[str, Any]

TABLE = yaml.safe_load((ROOT / "tests" / "unit" / "roundhouse_operator" / "invalid_objects.yaml").read_text())
REPLICA_SPEC: Obj = {
    "service": "a", "revision": "r", "replicas": 1, "engine": "torch", "engineModel": "a", "model": "", "gpuType": "",
    "template": {"spec": {"containers": [{"name": "engine"}]}},
}  # fmt: skip
CHANGES = [row for row in TABLE["replicas"] if "change" in row]
NEW = [("InferenceService", row) for row in TABLE["services"]]
NEW += [("EngineReplica", row) for row in TABLE["replicas"] if "spec" in row]


def obj(kind: str, spec: Obj, **meta: Any) -> Obj:
    metadata = {"name": "a", "namespace": "default", **meta}
    return {"apiVersion": "roundhouse.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def assert_refused(row: Row, refused: pytest.ExceptionInfo[CommandFailed]) -> None:
    for part in (row["field"], *row.get("says", []), *row.get("api", [])):
        assert part in str(refused.value)


@pytest.mark.parametrize(("kind", "row"), NEW, ids=[row["name"] for _, row in NEW])
def test_new_object_is_refused_with_field_and_fix(kube: Kube, kind: str, row: Row) -> None:
    base = REPLICA_SPEC if kind == "EngineReplica" else {}
    with pytest.raises(CommandFailed) as refused:
        kube.create(obj(kind, {**base, **row["spec"]}, **row.get("object", {})))
    assert_refused(row, refused)


@pytest.fixture(scope="module")
def replica(kube: Kube) -> Iterator[str]:
    kube.create(obj("EngineReplica", REPLICA_SPEC, name="frozen"))
    yield "frozen"
    kube.delete("erep", "frozen")


@pytest.mark.parametrize("row", CHANGES, ids=[row["name"] for row in CHANGES])
def test_change_is_refused_with_field_and_fix(kube: Kube, replica: str, row: Row) -> None:
    with pytest.raises(CommandFailed) as refused:
        kube.kubectl("patch", "erep", replica, "--type=merge", "--patch", json.dumps({"spec": row["change"]}))
    assert_refused(row, refused)


def test_a_deadline_may_be_set_on_a_frozen_replica(kube: Kube, replica: str) -> None:
    patch = json.dumps({"spec": {"drain": {"deadline": "2026-01-01T00:00:00Z"}}})
    kube.kubectl("patch", "erep", replica, "--type=merge", "--patch", patch)
