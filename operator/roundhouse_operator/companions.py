"""What each service has beside its replicas: a PodDisruptionBudget, and a NetworkPolicy if asked for. Pure.

Both belong to the service and go with it. They select its pods by label, so scaling and rolling change neither.
"""

from typing import Any

from roundhouse_engines.launch import AGENT_PORT, ENGINE_PORT

from roundhouse_operator.cluster import INFERENCE_SERVICE, NETWORK_POLICY, POD_DISRUPTION_BUDGET, Kind, Obj
from roundhouse_operator.names import companion_name, service_labels
from roundhouse_operator.render import owner
from roundhouse_operator.settings import Settings


def companions(service: Obj, settings: Settings) -> list[tuple[Kind, Obj]]:
    """Of an InferenceService, as they should be."""
    found = [(POD_DISRUPTION_BUDGET, _object(POD_DISRUPTION_BUDGET, service, _budget(service)))]
    if settings.network_policies:
        found.append((NETWORK_POLICY, _object(NETWORK_POLICY, service, _policy(service, settings))))
    return found


def holds(there: Any, wanted: Any) -> bool:
    """Whether an object has everything that is wanted; a server adds defaults of its own."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(name in there and holds(there[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        pairs = zip(there, wanted, strict=True) if isinstance(there, list) and len(there) == len(wanted) else None
        return pairs is not None and all(holds(one, other) for one, other in pairs)
    return bool(there == wanted)


def _object(kind: Kind, service: Obj, spec: Obj) -> Obj:
    meta = service["metadata"]
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": companion_name(meta["name"]),
            "namespace": meta["namespace"],
            "labels": service_labels(meta["name"]),
            "ownerReferences": [owner(service["apiVersion"], INFERENCE_SERVICE.kind, meta["name"], meta["uid"])],
        },
        "spec": spec,
    }


def _budget(service: Obj) -> Obj:
    """One at a time. What does not work anyway never keeps a node from being drained."""
    return {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": service_labels(service["metadata"]["name"])},
    }


def _policy(service: Obj, settings: Settings) -> Obj:
    """Only ingress: engines answer gateways and each other, agents the operator; metrics go to whoever may scrape."""
    own = {"matchLabels": service_labels(service["metadata"]["name"])}
    engine, agent = {"protocol": "TCP", "port": ENGINE_PORT}, {"protocol": "TCP", "port": AGENT_PORT}
    rules = [
        {"from": [_part(settings, "gateway")], "ports": [engine, agent]},
        {"from": [_part(settings, "operator")], "ports": [agent]},
        {"from": [{"podSelector": own}]},
    ]
    if settings.metrics_from:
        rules.append({"from": [dict(peer) for peer in settings.metrics_from], "ports": [engine, agent]})
    return {"podSelector": own, "policyTypes": ["Ingress"], "ingress": rules}


def _part(settings: Settings, component: str) -> Obj:
    """Pods of the chart, by the labels that it gives them."""
    namespace, _, release = settings.installation.partition("/")
    labels = {"app.kubernetes.io/instance": release, "app.kubernetes.io/component": component}
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": labels},
    }
