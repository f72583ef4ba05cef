"""A service from `kubectl apply` to `kubectl delete`."""

from collections.abc import Iterator

import pytest

from tests.cluster.kube import ROOT, Kube, eventually
from tests.cluster.release import Release

EXAMPLE = ROOT / "examples" / "sim.yaml"
OURS = "app.kubernetes.io/managed-by=roundhouse"


@pytest.fixture(scope="module")
def service(kube: Kube, release: Release) -> Iterator[str]:
    kube.kubectl("apply", "--filename", str(EXAMPLE))
    kube.kubectl("wait", "infsvc/sim", "--for=condition=Ready", "--timeout=60s", timeout=90)
    yield "sim"
    kube.delete("infsvc", "sim")


def replicas(kube: Kube) -> int:
    return len(kube.get("erep", labels="roundhouse.dev/service=sim"))


def test_it_answers_through_the_gateway(release: Release, service: str) -> None:
    answer = release.chat(service)
    assert answer.status == 200
    assert answer.body["usage"]["completion_tokens"] == 8


def test_it_is_listed_under_its_name(kube: Kube, service: str) -> None:
    line = kube.kubectl("get", "infsvc", service, "--no-headers").split()
    assert (line[0], line[1], line[2]) == ("sim", "sim", "True")


def test_agents_have_the_password_and_no_token(kube: Kube, service: str) -> None:
    pod = kube.get("pods", labels=f"{OURS},roundhouse.dev/service={service}")[0]
    assert pod["spec"]["automountServiceAccountToken"] is False
    sources = [
        e["valueFrom"]["secretKeyRef"]["name"]
        for e in pod["spec"]["initContainers"][0]["env"]
        if "secretKeyRef" in e.get("valueFrom", {})
    ]
    assert set(sources) == {"roundhouse-redis"}


def test_kubectl_scale_drains_the_surplus(kube: Kube, release: Release, service: str) -> None:
    kube.kubectl("scale", f"infsvc/{service}", "--replicas=1")
    assert eventually(lambda: replicas(kube) == 1, within=60)
    assert release.chat(service).status == 200


def test_a_deleted_pod_is_replaced(kube: Kube, service: str) -> None:
    def ready_pods() -> list[str]:
        pods = kube.get("pods", labels=f"roundhouse.dev/service={service}")
        lasting = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return [
            pod["metadata"]["name"]
            for pod in lasting
            if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"])
        ]

    (old,) = eventually(ready_pods)
    kube.delete("pod", old)
    assert eventually(lambda: [name for name in ready_pods() if name != old], within=60)


def test_a_deleted_service_leaves_nothing(kube: Kube, release: Release, service: str) -> None:
    kube.delete("infsvc", service)
    assert eventually(lambda: not kube.get("pods", labels=OURS) and not kube.get("erep"), within=60)
    assert eventually(lambda: not kube.get("secrets", labels=OURS), within=30)
    assert eventually(lambda: not [key for key in release.redis_keys() if "{default/sim}" in key], within=30)
    assert release.chat(service).status == 404


def test_the_operator_was_refused_nothing(release: Release) -> None:
    log = release.operator_log()
    assert "Forbidden" not in log
    assert "403" not in log
