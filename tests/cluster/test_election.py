"""Two operators of one release: one leads, and its sudden death loses and doubles nothing."""

import time

from tests.cluster.kube import Kube, eventually
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.release import Release
from tests.cluster.services import is_ready, pods, sim, wait_ready

SERVICES = [f"elected-{number}" for number in range(5)]


def leader(release: Release) -> str:
    lease = release.kube.get("lease", f"{release.fullname}-operator", namespace=release.namespace)
    return str(lease["spec"].get("holderIdentity") or "")


def kill(local_cluster: LocalCluster, kube: Kube, pod: str, namespace: str) -> None:
    """SIGKILL to the process of a pod's only container."""
    status = kube.get("pod", pod, namespace=namespace)
    container = status["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    node = int(status["spec"]["nodeName"].removeprefix("node-"))
    local_cluster.enter("ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container, node=node)


def test_the_leader_killed_amid_its_work_loses_and_doubles_nothing(
    kube: Kube, release: Release, local_cluster: LocalCluster
) -> None:
    release.install("--set", "operator.replicas=2")
    assert len([pod for pod in release.pods("operator") if is_ready(pod)]) == 2  # a standby is ready, too
    first = eventually(lambda: leader(release))
    kube.apply(*[sim(name) for name in SERVICES])
    eventually(lambda: kube.get("erep", labels="app.kubernetes.io/managed-by=roundhouse"))
    kill(local_cluster, kube, first, release.namespace)
    try:
        for name in SERVICES:
            wait_ready(kube, name, within=90)
        for name in SERVICES:
            assert len(pods(kube, name)) == 1
            assert len(kube.get("erep", labels=f"roundhouse.dev/service={name}")) == 1
            assert release.chat(name).status == 200
    finally:
        for name in SERVICES:
            kube.delete("infsvc", name)
    eventually(lambda: all(is_ready(pod) for pod in release.pods("operator")), within=60)


def test_kubectl_deleting_the_leader_hands_over_at_once(kube: Kube, release: Release) -> None:
    first = eventually(lambda: leader(release))
    begun = time.monotonic()
    kube.kubectl("delete", "pod", first, "--namespace", release.namespace, "--wait=false")
    eventually(lambda: leader(release) not in ("", first), within=12)
    assert time.monotonic() - begun < 12  # well below the Lease's 15 s: it was given back
