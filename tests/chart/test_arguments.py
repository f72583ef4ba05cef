"""What the chart tells the deployables is what they understand."""

from roundhouse_gateway.settings import parse_settings

from tests.chart.rendering import args_of, find, render


def test_the_gateway_understands_its_arguments() -> None:
    args = args_of(find(render(), "Deployment", "rh-roundhouse-gateway"))
    settings = parse_settings(args, {"RH_REDIS_PASSWORD": "x"})
    assert settings.installation == "serving/rh"
    assert settings.redis_url == "redis://rh-roundhouse-valkey.serving.svc:6379/0"
    assert settings.drain_timeout_s == 300
    assert settings.admin_address == ("0.0.0.0", 8081)
