"""The number of replicas: by load, by `kubectl scale`, by a HorizontalPodAutoscaler."""

import yaml

from tests.cluster.kube import ROOT, Kube, Obj, eventually
from tests.cluster.release import Release
from tests.cluster.services import pods, ready_pods, serving, sim
from tests.cluster.traffic import streaming


def autoscaled() -> Obj:
    """The example, with engines that two requests fill and a delay that a test can wait for."""
    service: Obj = yaml.safe_load((ROOT / "examples" / "scaling.yaml").read_text())
    service["metadata"]["namespace"] = "default"
    service["spec"]["engine"]["args"] = ["--max-num-seqs", "2"]
    service["spec"]["scaling"] |= {"max": 3, "scaleDownDelaySeconds": 5}
    return service


def test_load_scales_one_to_three_and_back_and_no_request_fails(kube: Kube, release: Release) -> None:
    with serving(kube, autoscaled()) as name:
        assert len(pods(kube, name)) == 1
        with streaming(release.url(), name, clients=24, tokens=100) as traffic:
            eventually(lambda: len(ready_pods(kube, name)) == 3, within=90)
            eventually(lambda: len(traffic.replicas) == 3, within=60)
        eventually(lambda: len(pods(kube, name)) == 1, within=120)
        assert release.chat(name).status == 200
        assert traffic.broken == []
        decisions = kube.get("infsvc", name)["status"]["scaling"]["decisions"]
        assert {d["reason"] for d in decisions} >= {"QueueDepth", "LowLoad"}
        assert all(d["message"] for d in decisions)
        assert kube.condition("infsvc", name, "ScalingActive")["status"] == "True"
        reasons = kube.kubectl(
            "get", "events", f"--field-selector=involvedObject.name={name}", "-o", "jsonpath={..reason}"
        )
        assert {"ScaledUp", "ScaledDown"} <= set(reasons.split())


def test_an_autoscaler_of_kubernetes_raises_one_replica_to_its_least(kube: Kube, release: Release) -> None:
    with serving(kube, sim("hpa", replicas=1)) as name:
        target = {"apiVersion": "roundhouse.dev/v1alpha1", "kind": "InferenceService", "name": name}
        metric = {
            "type": "Resource",
            "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
        }
        spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 3, "metrics": [metric]}
        hpa = {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": name},
            "spec": spec,
        }
        kube.apply(hpa)
        try:
            eventually(lambda: len(ready_pods(kube, name)) == 2, within=60)
            assert kube.get("infsvc", name)["spec"]["replicas"] == 2
        finally:
            kube.delete("hpa", name)
