"""What every render holds to, whatever the values."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import VALUES_FILES, Obj, of_kind, render, workloads

SELECTOR_KEYS = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


@pytest.fixture(scope="module", params=VALUES_FILES, ids=lambda path: path.stem)
def objects(request: pytest.FixtureRequest) -> list[Obj]:
    path: Path = request.param
    return render("--values", str(path))


def pod_spec(workload: Obj) -> Any:
    return workload["spec"]["template"]["spec"]


def test_names_are_unique_and_short(objects: list[Obj]) -> None:
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(names) == len(set(names))
    assert all(len(name) <= 63 for kind, _, name in names if kind != "CustomResourceDefinition")


def test_every_object_has_the_recommended_labels(objects: list[Obj]) -> None:
    for obj in objects:
        if obj["kind"] != "CustomResourceDefinition":
            labels = obj["metadata"]["labels"]
            assert labels.keys() >= SELECTOR_KEYS | {"app.kubernetes.io/version", "helm.sh/chart"}
            assert all(labels.values())


def test_every_namespaced_object_names_its_namespace(objects: list[Obj]) -> None:
    assert all(o["metadata"].get("namespace") for o in objects if o["kind"] not in CLUSTER_SCOPED)


def test_selectors_are_the_three_stable_labels_and_match_the_pods(objects: list[Obj]) -> None:
    for workload in workloads(objects):
        selector = workload["spec"]["selector"]["matchLabels"]
        assert selector.keys() == SELECTOR_KEYS
        assert selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()


def test_services_budgets_and_policies_select_pods_of_the_release(objects: list[Obj]) -> None:
    pods = [w["spec"]["template"]["metadata"]["labels"].items() for w in workloads(objects)]
    selectors = [
        *(o["spec"]["selector"] for o in of_kind(objects, "Service")),
        *(o["spec"]["selector"]["matchLabels"] for o in of_kind(objects, "PodDisruptionBudget")),
        *(o["spec"]["podSelector"]["matchLabels"] for o in of_kind(objects, "NetworkPolicy")),
    ]
    assert selectors
    for selector in selectors:
        assert any(selector.items() <= labels for labels in pods), selector


def test_service_ports_lead_to_container_ports(objects: list[Obj]) -> None:
    for service in of_kind(objects, "Service"):
        selector = service["spec"]["selector"].items()
        names = {
            port["name"]
            for w in workloads(objects)
            if selector <= w["spec"]["template"]["metadata"]["labels"].items()
            for port in pod_spec(w)["containers"][0]["ports"]
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


def test_network_policies_open_ports_that_containers_have(objects: list[Obj]) -> None:
    for policy in of_kind(objects, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]["matchLabels"].items()
        (workload,) = (w for w in workloads(objects) if selector <= w["spec"]["template"]["metadata"]["labels"].items())
        opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert opened == {port["containerPort"] for port in pod_spec(workload)["containers"][0]["ports"]}


def test_pods_are_hardened(objects: list[Obj]) -> None:
    for workload in workloads(objects):
        spec = pod_spec(workload)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_only_the_operator_has_a_token(objects: list[Obj]) -> None:
    with_token = [
        w["metadata"]["labels"]["app.kubernetes.io/component"]
        for w in workloads(objects)
        if pod_spec(w).get("automountServiceAccountToken") is not False
    ]
    assert with_token == ["operator"]


def test_containers_have_probes_requests_and_a_memory_limit_but_no_cpu_limit(objects: list[Obj]) -> None:
    for workload in workloads(objects):
        for container in pod_spec(workload)["containers"]:
            assert container.keys() >= {"livenessProbe", "readinessProbe"}
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert container["resources"]["limits"].keys() == {"memory"}


def test_images_have_a_tag_or_a_digest(objects: list[Obj]) -> None:
    for workload in workloads(objects):
        for container in pod_spec(workload)["containers"]:
            assert re.search(r"(:[\w.-]+|@sha256:[0-9a-f]{64})$", container["image"])
            assert not container["image"].endswith(":latest")


def test_the_gateway_outlives_its_hook_and_its_streams(objects: list[Obj]) -> None:
    (gateway,) = (w for w in workloads(objects) if w["metadata"]["name"].endswith("-gateway"))
    spec = pod_spec(gateway)
    hook = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    (drain,) = (a.partition("=")[2] for a in spec["containers"][0]["args"] if a.startswith("--drain-timeout="))
    assert spec["terminationGracePeriodSeconds"] > hook + int(drain)
