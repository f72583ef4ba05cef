"""One of two nodes is drained, and then dies, while answers stream. In this order: a killed node stays dead."""

import pytest

from tests.cluster.kube import Kube, eventually
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.release import Release
from tests.cluster.services import is_ready, ready_pods, serving, sim
from tests.cluster.traffic import streaming

pytestmark = pytest.mark.two_nodes
LEAVING = "node-2"


def nodes_of(kube: Kube, name: str) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in ready_pods(kube, name)}


def test_replicas_spread_and_a_drained_node_cuts_no_stream(kube: Kube, release: Release) -> None:
    with serving(kube, sim("drained", replicas=2, drain={"timeoutSeconds": 60})) as name:
        eventually(lambda: nodes_of(kube, name) == {"node-1", LEAVING})
        with streaming(release.url(), name, clients=10, tokens=200) as traffic:
            eventually(lambda: len(traffic.replicas) == 2)
            kube.kubectl(
                "drain", LEAVING, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s", timeout=180
            )
            eventually(lambda: len(ready_pods(kube, name)) == 2, within=60)
            settled = traffic.finished
            eventually(lambda: traffic.finished >= settled + 10)
        assert nodes_of(kube, name) == {"node-1"}
        assert traffic.broken == []
    kube.kubectl("uncordon", LEAVING)


def test_a_dead_node_is_told_to_clients_and_its_replica_comes_up_elsewhere(
    kube: Kube, release: Release, local_cluster: LocalCluster
) -> None:
    # What is asked is what becomes of engines there; a gateway that dies cannot tell its clients anything.
    staying = "nodeSelector.kubernetes\\.io/hostname=node-1"
    release.install("--set", f"gateway.{staying},operator.{staying},valkey.{staying}")
    with serving(kube, sim("bereaved", replicas=2, drain={"timeoutSeconds": 1})) as name:
        eventually(lambda: nodes_of(kube, name) == {"node-1", LEAVING})
        with streaming(release.url(), name, clients=10, tokens=200) as traffic:
            eventually(lambda: len(traffic.replicas) == 2)
            first = f"kill -KILL $(cat /proc/$(cat /run/{LEAVING}.pid)/task/*/children)"
            local_cluster.enter("bash", "-c", first)
            eventually(lambda: _not_ready(kube), within=60)
            eventually(lambda: len(_living(kube, name)) == 2, within=180)
            known, settled = len(traffic.broken), traffic.finished
            eventually(lambda: traffic.finished >= settled + 20, within=60)
            assert len(traffic.broken) == known
        assert all('"error"' in wrong for wrong in traffic.broken), traffic.broken
        assert kube.condition("infsvc", name, "Ready")["status"] == "True"


def _not_ready(kube: Kube) -> bool:
    node = kube.get("node", LEAVING)
    return not is_ready(node)


def _living(kube: Kube, name: str) -> list[str]:
    return [pod["spec"]["nodeName"] for pod in ready_pods(kube, name) if pod["spec"]["nodeName"] != LEAVING]
