"""Evictions against the budget of a service; and what its NetworkPolicy says, which this cluster does not enforce."""

import json

import pytest

from tests.cluster.kube import CommandFailed, Kube, Obj, eventually
from tests.cluster.release import Release
from tests.cluster.services import names, pods, ready_pods, serving, sim


def evict(kube: Kube, pod: Obj) -> None:
    meta = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    body = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"
    kube.kubectl("create", "--raw", path, "--filename", "-", stdin=body)


def allowed(kube: Kube, name: str) -> int:
    budget = kube.get("pdb", f"{name}-roundhouse")
    current = budget["status"].get("observedGeneration") == budget["metadata"]["generation"]
    return int(budget["status"]["disruptionsAllowed"]) if current else 0


def test_a_single_replica_may_be_evicted_and_comes_again(kube: Kube, release: Release) -> None:
    with serving(kube, sim("single")) as name:
        (pod,) = pods(kube, name)
        eventually(lambda: allowed(kube, name) == 1)
        evict(kube, pod)
        eventually(lambda: names(ready_pods(kube, name)) - names([pod]), within=90)


def test_of_three_replicas_one_at_a_time_may_be_evicted(kube: Kube, release: Release) -> None:
    with serving(kube, sim("several", replicas=3)) as name:
        first, second, _ = pods(kube, name)
        eventually(lambda: allowed(kube, name) == 1)
        evict(kube, first)
        with pytest.raises(CommandFailed, match="disruption budget"):
            evict(kube, second)
        eventually(lambda: len(ready_pods(kube, name)) == 3 and allowed(kube, name) == 1, within=90)
        evict(kube, second)


def test_engines_answer_gateways_and_each_other_only(kube: Kube, release: Release) -> None:
    with serving(kube, sim("walled")) as name:
        policy = kube.get("networkpolicy", f"{name}-roundhouse")["spec"]
        assert policy["policyTypes"] == ["Ingress"]
        assert policy["podSelector"]["matchLabels"]["roundhouse.dev/service"] == name
        gateways, operator, own = policy["ingress"]
        for rule, component in ((gateways, "gateway"), (operator, "operator")):
            (peer,) = rule["from"]
            selector = ",".join(f"{key}={value}" for key, value in peer["podSelector"]["matchLabels"].items())
            found = kube.get("pods", namespace=release.namespace, labels=selector)
            assert names(found) == names(release.pods(component))
            assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": release.namespace}
        assert [port["port"] for port in gateways["ports"]] == [8000, 9090]
        assert [port["port"] for port in operator["ports"]] == [9090]
        assert own["from"] == [{"podSelector": policy["podSelector"]}]
