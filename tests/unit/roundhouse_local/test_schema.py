from typing import Any

import pytest
from roundhouse_local.api import MemoryCluster, SchemaValidator
from roundhouse_operator.cluster import CONFIG_MAP, INFERENCE_SERVICE, Invalid, Obj

from tests.unit.roundhouse_local.objects import obj

SPEC: Obj = {
    "type": "object",
    "required": ["model"],
    "properties": {
        "model": {"type": "string", "minLength": 1, "pattern": "^[a-z]+://"},
        "replicas": {"type": "integer", "format": "int32", "minimum": 0},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "names": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 2, "items": {"type": "string"}},
        "surge": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "env": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "note": {"type": "string", "nullable": True},
        "rate": {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
    },
}
ROOT: Obj = {"type": "object", "properties": {"spec": SPEC, "status": {"type": "object"}}}
CRD: Obj = {
    "spec": {
        "group": "roundhouse.dev",
        "names": {"kind": "InferenceService", "plural": "inferenceservices"},
        "versions": [
            {
                "name": "v1alpha1",
                "schema": {
                    "openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC, "status": {"type": "object"}}}
                },
            }
        ],
    }
}


def frozen_model(new: Obj, old: Obj | None) -> list[str]:
    if old and new["spec"]["model"] != old["spec"]["model"]:
        return ["spec.model: Invalid value: is immutable"]
    return []


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(SchemaValidator([CRD], {"inferenceservices": frozen_model}))


GOOD: Obj = {
    "model": "hf://x",
    "replicas": 1,
    "kind": "a",
    "names": ["x"],
    "surge": "10%",
    "env": [{"name": "A"}],
    "labels": {"x": "y"},
    "template": {"anything": [1, {"goes": True}]},
    "note": None,
    "rate": 2,
}


async def test_valid_object_is_accepted(cluster: MemoryCluster) -> None:
    assert (await cluster.create(INFERENCE_SERVICE, obj("a", spec=GOOD)))["spec"] == GOOD


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "spec.model: Required value"),
        ({"model": 3}, "spec.model: Invalid value: 3: spec.model in body must be of type string"),
        ({"model": "HF"}, "spec.model in body should match '^[a-z]+://'"),
        ({"model": "hf://x", "modle": 1}, 'unknown field "spec.modle"'),
        ({"model": "hf://x", "replicas": "two"}, 'spec.replicas: Invalid value: "two"'),
        ({"model": "hf://x", "replicas": True}, "spec.replicas in body must be of type integer"),
        ({"model": "hf://x", "replicas": -1}, "spec.replicas in body should be greater than or equal to 0"),
        ({"model": "hf://x", "replicas": 2**31}, "spec.replicas in body should be less than or equal to 2147483647"),
        ({"model": "hf://x", "kind": "c"}, 'spec.kind: Unsupported value: "c": supported values: "a", "b"'),
        ({"model": "hf://x", "names": ["a", "a"]}, "spec.names: Duplicate value"),
        ({"model": "hf://x", "names": ["a", "b", "c"]}, "spec.names: Too many: 3: must have at most 2 items"),
        ({"model": "hf://x", "surge": 1.5}, "spec.surge"),
        ({"model": "hf://x", "env": [{"name": "A", "vaule": "x"}]}, 'unknown field "spec.env[0].vaule"'),
        ({"model": "hf://x", "labels": {"x": 1}}, "spec.labels.x in body must be of type string"),
        ({"model": "hf://x", "rate": 1}, "spec.rate in body should be greater than 1"),
        ({"model": None}, "spec.model: Invalid value: null"),
        ([], 'spec: Invalid value: "array"'),
    ],
)
async def test_invalid_object_is_refused_by_field(cluster: MemoryCluster, spec: Any, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        await cluster.create(INFERENCE_SERVICE, obj("a", spec=spec))
    assert message in str(caught.value)
    assert str(caught.value).startswith('InferenceService.roundhouse.dev "a" is invalid: ')


async def test_unknown_field_at_the_top_is_refused(cluster: MemoryCluster) -> None:
    with pytest.raises(Invalid, match='unknown field "sepc"'):
        await cluster.create(INFERENCE_SERVICE, obj("a", spec=GOOD, sepc={}))


async def test_every_complaint_is_told(cluster: MemoryCluster) -> None:
    with pytest.raises(Invalid, match=r"spec\.kind: .*; spec\.replicas: "):
        await cluster.create(INFERENCE_SERVICE, obj("a", spec={"model": "hf://x", "replicas": -1, "kind": "c"}))


async def test_rule_sees_the_object_before(cluster: MemoryCluster) -> None:
    await cluster.apply(INFERENCE_SERVICE, obj("a", spec={"model": "hf://x"}))
    with pytest.raises(Invalid, match="is immutable"):
        await cluster.apply(INFERENCE_SERVICE, obj("a", spec={"model": "hf://y"}))


async def test_status_is_checked_too(cluster: MemoryCluster) -> None:
    await cluster.create(INFERENCE_SERVICE, obj("a", spec={"model": "hf://x"}))
    with pytest.raises(Invalid, match="status"):
        await cluster.patch_status(INFERENCE_SERVICE, "default", "a", "ready")  # type: ignore[arg-type]


async def test_kind_without_schema_is_accepted(cluster: MemoryCluster) -> None:
    assert await cluster.create(CONFIG_MAP, obj("a", whatever=1))
