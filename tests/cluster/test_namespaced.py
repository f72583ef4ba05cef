"""A release that serves one namespace and has no cluster-wide right; and what its end leaves."""

from collections.abc import Iterator

import pytest

from tests.cluster.kube import Kube, eventually
from tests.cluster.release import Release
from tests.cluster.services import OURS, serving, sim, wait_ready


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
    kube.apply(sim("mine", namespace=tenant))
    kube.kubectl("wait", "infsvc/mine", "-n", tenant, "--for=condition=Ready", "--timeout=60s", timeout=90)
    assert other.chat("mine").status == 200
    assert other.chat("tenant/mine").status == 200
    names = kube.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert "tenant" not in names
    assert "Forbidden" not in other.operator_log()


def test_another_release_serves_another_namespace_beside_it(kube: Kube, other: Release, tenant: str) -> None:
    second = Release(kube, "second", "second-roundhouse")
    with kube.namespace("neighbour") as neighbour:
        second.install("--set", f"watchNamespaces={{{neighbour}}},crds.install=false")
        with serving(kube, sim("mine", namespace=neighbour)):
            assert second.chat("neighbour/mine").status == 200
            assert second.chat("tenant/mine").status == 404
            assert other.chat("tenant/mine").status == 200
            assert other.chat("neighbour/mine").status == 404
        second.uninstall()
    kube.delete("namespace", second.namespace)
    assert other.chat("mine").status == 200


def test_uninstalled_it_leaves_only_what_others_own(kube: Kube, other: Release, tenant: str) -> None:
    kube.delete("infsvc", "mine", namespace=tenant)
    assert eventually(lambda: not kube.get("pods", namespace=tenant, labels=OURS))
    other.uninstall()
    kinds = (
        "pods,deployments,statefulsets,services,secrets,leases,roles,rolebindings,networkpolicies,poddisruptionbudgets"
    )

    def left() -> list[str]:
        return kube.kubectl("get", kinds, "-n", other.namespace, "-o", "name").split()

    assert eventually(lambda: left() == [], within=60), left()
    assert kube.get("crd", "inferenceservices.roundhouse.dev")


def test_installed_again_under_another_name_it_serves_what_is_there(kube: Kube, other: Release, tenant: str) -> None:
    again = Release(kube, "renamed", other.namespace)
    kube.apply(sim("left", namespace=tenant))
    again.install("--set", f"watchNamespaces={{{tenant}}}")
    wait_ready(kube, "left", namespace=tenant)
    assert again.chat("left").status == 200
    kube.delete("infsvc", "left", namespace=tenant)
    eventually(lambda: not kube.get("pods", namespace=tenant, labels=OURS), within=60)
    again.uninstall()
    kube.delete("namespace", again.namespace)
