"""The chart on a real cluster, as far as it goes without an operator that runs."""

import base64
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.cluster.kube import Kube, Obj, eventually

RELEASE, NAMESPACE = "roundhouse", "roundhouse"


def component(kube: Kube, name: str) -> list[Obj]:
    return list(kube.get("pods", namespace=NAMESPACE, labels=f"app.kubernetes.io/component={name}"))


def status_of(url: str) -> int:
    """0: nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.fixture(scope="module", autouse=True)
def release(kube: Kube, images: None) -> Iterator[None]:
    password = base64.b64encode(secrets.token_bytes(16)).decode()
    kube.kubectl("create", "namespace", NAMESPACE)
    kube.kubectl("create", "secret", "generic", "valkey", f"--from-literal=password={password}", f"-n{NAMESPACE}")
    kube.install(RELEASE, NAMESPACE, "--set", "valkey.existingSecret=valkey,operator.replicas=0", wait=False)
    yield
    kube.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
    kube.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_valkey_becomes_ready_on_a_read_only_root(kube: Kube) -> None:
    kube.kubectl("rollout", "status", "statefulset/roundhouse-valkey", f"-n{NAMESPACE}", "--timeout=60s")


def test_gateways_live_and_wait_for_a_catalogue(kube: Kube) -> None:
    def alive() -> bool:
        pods = component(kube, "gateway")
        addresses = [pod["status"]["podIP"] for pod in pods]
        return len(addresses) == 2 and all(status_of(f"http://{a}:8081/healthz") == 200 for a in addresses)

    assert eventually(alive, within=60)
    address = component(kube, "gateway")[0]["status"]["podIP"]
    assert status_of(f"http://{address}:8081/readyz") == 503
    assert status_of(f"http://{address}:8080/v1/models") == 503


def test_pods_run_as_nobody_and_only_where_they_may_write(kube: Kube) -> None:
    pod = component(kube, "gateway")[0]["metadata"]["name"]
    probe = "id -u; touch /var/lib/roundhouse/x && echo state; touch /opt/x 2>/dev/null || echo read-only"
    assert kube.kubectl("exec", pod, f"-n{NAMESPACE}", "--", "sh", "-c", probe).split() == [
        "65532",
        "state",
        "read-only",
    ]


def test_the_gateway_has_no_token(kube: Kube) -> None:
    pod = component(kube, "gateway")[0]["metadata"]["name"]
    listing = kube.kubectl("exec", pod, f"-n{NAMESPACE}", "--", "sh", "-c", "ls /var/run/secrets 2>&1 || true")
    assert "kubernetes.io" not in listing


def test_the_operator_may_do_what_it_does_and_no_more(kube: Kube) -> None:
    account = f"system:serviceaccount:{NAMESPACE}:roundhouse-operator"

    def may(verb: str, resource: str, *options: str) -> bool:
        answer = kube.kubectl("create", "-f", "-", "-o", "jsonpath={.status.allowed}", stdin=review(verb, resource))
        return answer == "true"

    def review(verb: str, resource: str) -> str:
        group, _, plural = resource.rpartition("/")
        attributes = f"{{verb: {verb}, group: '{group}', resource: {plural}, namespace: default}}"
        return (
            "{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, "
            f"spec: {{user: '{account}', resourceAttributes: {attributes}}}}}"
        )

    assert may("watch", "roundhouse.dev/inferenceservices")
    assert may("create", "roundhouse.dev/enginereplicas")
    assert may("delete", "pods")
    assert not may("update", "roundhouse.dev/inferenceservices")
    assert not may("list", "secrets")
    assert not may("get", "nodes")
