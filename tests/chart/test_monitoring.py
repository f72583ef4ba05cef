"""The alerts speak of metrics that exist, of pods that are scraped."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from roundhouse_gateway.admin_views import feed_gauges, plane_gauges
from roundhouse_gateway.counts import Metrics
from roundhouse_gateway.metrics import families as metric_families

from tests.chart.rendering import ROOT, find, render

ON = [
    "--set",
    "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true",
]


def rules() -> Iterator[dict[str, Any]]:
    for group in find(render(*ON), "PrometheusRule", "rh-roundhouse")["spec"]["groups"]:
        yield from group["rules"]


def source_of(*functions: Any) -> str:
    return "".join(function.__globals__["__loader__"].get_source(function.__module__) for function in functions)


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: rule["alert"])
def test_an_alert_reads_metrics_that_exist(rule: dict[str, Any]) -> None:
    families = {family.name for family in metric_families(Metrics())}
    gauges = source_of(feed_gauges, plane_gauges)
    agent = (ROOT / "engines" / "roundhouse_agent" / "metrics.py").read_text()
    for name in re.findall(r"roundhouse_\w+", rule["expr"]):
        short = name.removeprefix("roundhouse_gateway_")
        assert name.removesuffix("_total") in families or f'"{short}"' in gauges or f'"{name}"' in agent, name


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    assert rule["for"]


def test_service_monitors_select_the_metrics_services() -> None:
    objects = render(*ON)
    for name in ("rh-roundhouse-operator-metrics", "rh-roundhouse-gateway-metrics"):
        selector = find(objects, "ServiceMonitor", name)["spec"]["selector"]["matchLabels"]
        assert selector.items() <= find(objects, "Service", name)["metadata"]["labels"].items()


def test_engine_pods_of_watched_namespaces_are_scraped() -> None:
    monitor = find(render(*ON, "--set", "watchNamespaces={a}"), "PodMonitor", "rh-roundhouse-engines")
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["a"]}
    pod = (ROOT / "operator" / "roundhouse_operator" / "pod_template.py").read_text()
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        assert f'{{"name": "{endpoint["port"]}", "containerPort"' in pod
