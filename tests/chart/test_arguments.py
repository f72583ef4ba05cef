"""What the chart tells the deployables is what they understand."""

from pathlib import Path

from roundhouse_gateway.settings import parse_settings
from roundhouse_operator.options import parse_options

from tests.chart.rendering import args_of, find, render


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
    assert options.redis_secret == "rh-roundhouse-valkey"
    assert options.port == 8082
