"""The chart is well-formed for Helm and for the oldest and newest Kubernetes."""

from pathlib import Path

import kubernetes_validate
import pytest

from tests.chart.rendering import CHART, VALUES_FILES, helm, render

OLDEST = "1.29"
NEWEST = kubernetes_validate.latest_version()
# Their schemas come with whoever brings these kinds.
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "HTTPRoute"}

every_values_file = pytest.mark.parametrize("values", VALUES_FILES, ids=lambda path: path.stem)


@every_values_file
def test_helm_lint_strict(values: Path) -> None:
    helm("lint", "--strict", str(CHART), "--values", str(values))


@every_values_file
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_objects_fit_the_schemas_of_kubernetes(values: Path, version: str) -> None:
    for obj in render("--values", str(values), "--kube-version", version):
        if obj["kind"] not in FOREIGN:
            kubernetes_validate.validate(obj, version, strict=True)


def test_a_kubernetes_too_old_for_native_sidecars_is_refused() -> None:
    with pytest.raises(Exception, match="incompatible with Kubernetes"):
        render("--kube-version", "1.28")
