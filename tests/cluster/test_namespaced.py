"""A release that serves one namespace and has no cluster-wide right; and what its end leaves."""

from collections.abc import Iterator

import pytest

from tests.cluster.kube import Kube, Obj, eventually
from tests.cluster.release import Release

SIM: Obj = {"engine": {"name": "sim"}, "resources": {"gpus": 0}}


def service(name: str, namespace: str) -> Obj:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "roundhouse.dev/v1alpha1", "kind": "InferenceService", "metadata": metadata, "spec": SIM}


@pytest.fixture(scope="module")
def tenant(kube: Kube) -> Iterator[str]:
    with kube.namespace("tenant") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def other(kube: Kube, images: dict[str, float], crds: None, tenant: str) -> Release:
    release = Release(kube, "tenant", "tenant-roundhouse")
    release.install("--set", f"watchNamespaces={{{tenant}}},crds.install=false")
    return release


def test_it_serves_its_namespace_with_rights_in_that_alone(kube: Kube, other: Release, tenant: str) -> None:
    kube.apply(service("mine", tenant))
    kube.kubectl("wait", "infsvc/mine", "-n", tenant, "--for=condition=Ready", "--timeout=60s", timeout=90)
    assert other.chat("mine").status == 200
    assert other.chat("tenant/mine").status == 200
    names = kube.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert "tenant" not in names
    assert "Forbidden" not in other.operator_log()


def test_uninstalled_it_leaves_only_what_others_own(kube: Kube, other: Release, tenant: str) -> None:
    kube.delete("infsvc", "mine", namespace=tenant)
    assert eventually(lambda: not kube.get("pods", namespace=tenant, labels="app.kubernetes.io/managed-by=roundhouse"))
    other.uninstall()
    kinds = (
        "pods,deployments,statefulsets,services,secrets,leases,roles,rolebindings,networkpolicies,poddisruptionbudgets"
    )

    def left() -> list[str]:
        return kube.kubectl("get", kinds, "-n", other.namespace, "-o", "name").split()

    assert eventually(lambda: left() == [], within=60), left()
    kube.delete("namespace", other.namespace)
    assert kube.get("crd", "inferenceservices.roundhouse.dev")
