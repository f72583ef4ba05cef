"""What the chart tells the deployables is what they understand."""

from pathlib import Path

import pytest
from roundhouse_gateway.settings import parse_settings
from roundhouse_operator.options import parse_options

from tests.chart.rendering import VALUES_FILES, args_of, find, of_kind, render


def test_the_gateway_understands_its_arguments() -> None:
    args = args_of(find(render("--set", "auth.existingSecret=keys"), "Deployment", "rh-roundhouse-gateway"))
    settings = parse_settings(args, {"RH_REDIS_PASSWORD": "x"})
    assert settings.installation == "serving/rh"
    assert settings.redis_url == "redis://rh-roundhouse-valkey.serving.svc:6379/0"
    assert settings.drain_timeout_s == 300
    assert settings.api_keys == Path("/etc/roundhouse/keys")
    assert settings.admin_address == ("0.0.0.0", 8081)


def test_the_operator_understands_its_arguments() -> None:
    objects = render("--set", "watchNamespaces={a,b},engines.modelCacheHostPath=/models")
    options = parse_options(
        args_of(find(objects, "Deployment", "rh-roundhouse-operator")), {"POD_NAMESPACE": "serving", "POD_NAME": "o"}
    )
    assert options.settings.namespaces == ("a", "b")
    assert options.settings.gateway_url == "http://rh-roundhouse-gateway.serving.svc:8080/v1"
    assert options.settings.image("torch") == "roundhouse-engine:0.1.0"
    assert options.settings.default_cache_path == "/models"
    assert options.settings.redis_acl
    assert options.settings.network_policies
    assert options.redis_secret == "rh-roundhouse-valkey"
    assert options.port == 8082


@pytest.mark.parametrize("values", VALUES_FILES, ids=lambda path: path.stem)
def test_whatever_the_values_both_understand_what_they_are_told(values: Path) -> None:
    for deployment in of_kind(render("--values", str(values)), "Deployment"):
        env = {"RH_REDIS_PASSWORD": "x", "POD_NAMESPACE": "serving", "POD_NAME": "o"}
        parse = parse_options if deployment["metadata"]["name"].endswith("-operator") else parse_settings
        parse(args_of(deployment), env)


def test_scrapers_of_engines_are_those_of_the_values() -> None:
    values = "networkPolicies.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring"
    options = parse_options(
        args_of(find(render("--set", values), "Deployment", "rh-roundhouse-operator")), {"POD_NAMESPACE": "serving"}
    )
    assert options.settings.metrics_from == ({"namespaceSelector": {"matchLabels": {"name": "monitoring"}}},)
