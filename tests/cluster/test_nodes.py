"""What the rest relies on: the cluster starts, runs containers, and has fake GPUs."""

from tests.cluster.kube import Kube, eventually
from tests.cluster.local_cluster import LocalCluster


def test_every_node_is_ready(kube: Kube) -> None:
    for node in kube.get("nodes"):
        assert any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])


def test_dns_runs(kube: Kube) -> None:
    pods = eventually(lambda: kube.get("pods", namespace="kube-system", labels="k8s-app=kube-dns"))
    name = pods[0]["metadata"]["name"]
    kube.kubectl("wait", f"pod/{name}", "--namespace=kube-system", "--for=condition=Ready", "--timeout=60s")


def test_each_node_offers_two_gpus(kube: Kube, local_cluster: LocalCluster) -> None:
    eventually(lambda: all(n["status"]["allocatable"].get("nvidia.com/gpu") == "2" for n in kube.get("nodes")))
