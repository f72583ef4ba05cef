"""What `helm install` brings: pods that are ready, hardened, and allowed no more than they need."""

from tests.cluster.kube import Kube
from tests.cluster.release import Release, ask


def test_gateways_without_a_service_answer_404_and_an_empty_list(release: Release) -> None:
    assert ask(f"{release.url()}/v1/models").body["data"] == []
    assert release.chat("nobody").status == 404


def test_the_operator_makes_a_password_that_goes_with_its_deployment(release: Release) -> None:
    secret = release.kube.get("secret", "roundhouse-valkey", namespace=release.namespace)
    assert len(secret["data"]["password"]) >= 32
    assert [o["kind"] for o in secret["metadata"]["ownerReferences"]] == ["Deployment"]


def test_pods_run_as_nobody_and_write_only_where_they_may(kube: Kube, release: Release) -> None:
    pod = release.pods("gateway")[0]["metadata"]["name"]
    probe = "id -u; touch /var/lib/roundhouse/x && echo state; touch /opt/x 2>/dev/null || echo read-only"
    words = kube.kubectl("exec", pod, "--namespace", release.namespace, "--", "sh", "-c", probe).split()
    assert words == ["65532", "state", "read-only"]


def test_only_the_operator_has_a_token(kube: Kube, release: Release) -> None:
    for component in ("gateway", "valkey"):
        pod = release.pods(component)[0]["metadata"]["name"]
        mounts = kube.kubectl("exec", pod, "--namespace", release.namespace, "--", "cat", "/proc/self/mounts")
        assert "kubernetes.io" not in mounts


def test_the_operator_may_do_what_it_does_and_no_more(kube: Kube, release: Release) -> None:
    account = f"system:serviceaccount:{release.namespace}:roundhouse-operator"

    def may(verb: str, resource: str) -> bool:
        group, _, plural = resource.rpartition("/")
        attributes = f"{{verb: {verb}, group: '{group}', resource: {plural}, namespace: default}}"
        spec = f"{{user: '{account}', resourceAttributes: {attributes}}}"
        review = f"{{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {spec}}}"
        return kube.kubectl("create", "-f", "-", "-o", "jsonpath={.status.allowed}", stdin=review) == "true"

    assert may("watch", "roundhouse.dev/inferenceservices")
    assert may("create", "roundhouse.dev/enginereplicas")
    assert may("delete", "pods")
    assert not may("update", "roundhouse.dev/inferenceservices")
    assert not may("list", "secrets")
    assert not may("get", "nodes")
