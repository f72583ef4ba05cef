"""values.yaml and values.schema.json say the same, and what neither knows is refused with its place."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, ChartRefused, render

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    return SCHEMA["definitions"][reference.rpartition("/")[2]] if reference else schema


def schema_paths(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    schema = resolve(schema)
    if not schema.get("properties"):
        yield path
    for name, inner in schema.get("properties", {}).items():
        yield from schema_paths(inner, f"{path}.{name}")


def value_paths(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    schema = resolve(schema)
    if not schema.get("properties"):
        yield path
        return
    for name, inner in value.items():
        yield from value_paths(inner, schema["properties"][name], f"{path}.{name}")


# Kubernetes' own parts of `resources`, `global` of Helm: allowed, without a default.
UNSET = ("requests", "limits", "claims", "global")


def test_every_value_of_the_schema_has_a_default() -> None:
    allowed = {p for p in schema_paths(SCHEMA) if p.rpartition(".")[2] not in UNSET}
    defaults = {p for p in value_paths(VALUES, SCHEMA) if p.rpartition(".")[2] not in UNSET}
    assert allowed == defaults


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ("gatway.replicas=2", "additional properties 'gatway' not allowed"),
        ("gateway.replica=2", "at '/gateway': additional properties 'replica' not allowed"),
        ("gateway.image.name=x", "at '/gateway/image'"),
        ("operator.pdb.minAvailable=1", "at '/operator/pdb'"),
        ("gateway.service.type=ExternalName", "at '/gateway/service/type'"),
        ("gateway.service.port=70000", "at '/gateway/service/port'"),
        ("gateway.drainSeconds=-1", "at '/gateway/drainSeconds'"),
        ("gateway.autoscaling.targetCPUUtilizationPercentage=101", "targetCPUUtilizationPercentage"),
        ("image.pullPolicy=Sometimes", "at '/image/pullPolicy'"),
        ("operator.image.digest=abc", "at '/operator/image/digest'"),
        ("watchNamespaces={Team_A}", "at '/watchNamespaces/0'"),
        ("watchNamespaces=team-a", "at '/watchNamespaces'"),
        ("crds.keep=1", "at '/crds/keep'"),
        ("metrics.podMonitor.interval=often", "at '/metrics/podMonitor/interval'"),
        ("engines.modelCacheHostPath=models", "at '/engines/modelCacheHostPath'"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(setting: str, where: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        render("--set", setting)
    assert where in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ("valkey.enabled=false,externalRedis.existingSecret=s", "externalRedis.host is needed"),
        ("valkey.enabled=false,externalRedis.host=redis", "externalRedis.existingSecret is needed"),
        ("gateway.ingress.enabled=true", "set auth.existingSecret"),
        ("gateway.httpRoute.enabled=true", "auth.disabled=true if that is meant"),
    ],
)
def test_an_impossible_combination_is_refused_with_the_remedy(settings: str, remedy: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        render("--set", settings)
    assert remedy in str(refused.value)


@pytest.mark.parametrize("consent", ["auth.existingSecret=keys", "auth.disabled=true"])
def test_the_gateway_is_exposed_with_keys_or_with_consent(consent: str) -> None:
    kinds = {o["kind"] for o in render("--set", f"gateway.ingress.enabled=true,{consent}")}
    assert "Ingress" in kinds
