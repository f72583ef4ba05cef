"""Changes while streams run: a new revision of a service, new versions of operator and gateway, and the way back."""

import pytest

from tests.cluster.kube import Kube, eventually
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.release import Release
from tests.cluster.services import pods, ready_pods, serving, sim, uids, wait_ready
from tests.cluster.traffic import streaming


def test_changed_engine_arguments_replace_every_replica_and_lose_no_stream(kube: Kube, release: Release) -> None:
    with serving(kube, sim("rolled", replicas=2, drain={"timeoutSeconds": 60})) as name:
        before = uids(pods(kube, name))
        with streaming(release.url(), name, clients=10, tokens=200) as traffic:
            eventually(lambda: traffic.finished >= 10)
            kube.apply(sim("rolled", "--answer-tokens", "64", replicas=2, drain={"timeoutSeconds": 60}))
            eventually(lambda: len(ready_pods(kube, name)) == 2 and not uids(pods(kube, name)) & before, within=120)
        assert traffic.broken == []
        assert traffic.finished >= 30
        wait_ready(kube, name)


@pytest.fixture
def next_agent(local_cluster: LocalCluster, images: dict[str, float]) -> str:
    """An agent's image under another tag."""
    for node in local_cluster.nodes:
        image = "localhost/roundhouse-agent"
        local_cluster.enter(
            "ctr", "-n", "k8s.io", "images", "tag", "--force", f"{image}:dev", f"{image}:next", node=node
        )
    return "next"


def test_an_upgrade_with_another_agent_deletes_no_engine_and_a_rollback_neither(
    kube: Kube, release: Release, next_agent: str
) -> None:
    with serving(kube, sim("kept", replicas=2)) as name:
        before = uids(pods(kube, name))
        new = {"engines.agent.tag": next_agent, "engines.modelCacheHostPath": "/var/tmp/models"}
        new |= {"operator.podAnnotations.version": "next", "gateway.podAnnotations.version": "next"}
        gateways, operators = uids(release.pods("gateway")), uids(release.pods("operator"))
        with streaming(release.url(), name, clients=20, tokens=300) as traffic:
            eventually(lambda: traffic.begun >= 20)
            release.install("--set", ",".join(f"{key}={value}" for key, value in new.items()))
            eventually(lambda: not gateways & uids(release.pods("gateway")), within=60)
            eventually(lambda: not operators & uids(release.pods("operator")), within=60)
            settled = traffic.finished
            eventually(lambda: traffic.finished >= settled + 20)
        assert traffic.broken == []
        assert uids(ready_pods(kube, name)) == before
        kube.kubectl("scale", f"infsvc/{name}", "--replicas=3")
        eventually(lambda: len(ready_pods(kube, name)) == 3, within=60)
        images = {
            pod["spec"]["initContainers"][0]["image"]
            for pod in pods(kube, name)
            if pod["metadata"]["uid"] not in before
        }
        assert images == {"localhost/roundhouse-agent:next"}
        kube.helm("rollback", release.name, "--namespace", release.namespace, "--wait", "--timeout", "3m")
        assert before <= uids(ready_pods(kube, name))
        assert release.chat(name).status == 200
