"""From an InferenceService to an EngineReplica, and from that to its pod. Pure.

The EngineReplica carries the whole pod template, frozen: what is rendered today runs until the replica's end, whatever
operator comes later. Only what does not exist before the EngineReplica does (its UID) is added when its pod is made.
"""

from base64 import b64encode

from roundhouse_operator.api.service import InferenceService
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, Obj
from roundhouse_operator.effective import effective, launch_plan
from roundhouse_operator.names import (
    OURS,
    REDIS_SECRET,
    REPLICA_LABEL,
    REVISION_LABEL,
    ROLE_LABEL,
    service_labels,
)
from roundhouse_operator.overlay import merged, merged_pod
from roundhouse_operator.pod_template import PodTemplate
from roundhouse_operator.settings import Settings


def render_replica(service: InferenceService, revision: str, name: str, settings: Settings) -> Obj:
    """A new EngineReplica. Raises `BadEngineSpec`."""
    wanted = effective(service.spec, settings)
    meta = service.metadata
    overlay = service.spec.pod_template or {}
    labels = {**service_labels(meta.name), REPLICA_LABEL: name, REVISION_LABEL: revision, ROLE_LABEL: "both"}
    spec = PodTemplate(service, wanted, launch_plan(service, settings), name, settings).spec()
    template = {
        "metadata": merged({"labels": labels}, overlay.get("metadata") or {}),
        "spec": merged_pod(spec, overlay.get("spec") or {}),
    }
    return {
        "apiVersion": ENGINE_REPLICA.api_version,
        "kind": ENGINE_REPLICA.kind,
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": {**service_labels(meta.name), REVISION_LABEL: revision},
            "ownerReferences": [owner(service.api_version, INFERENCE_SERVICE.kind, meta.name, meta.uid)],
        },
        "spec": {
            "service": meta.name,
            "revision": revision,
            "replicas": 1,
            "engine": wanted.engine,
            "engineModel": meta.name,
            "model": wanted.spec.model or "",
            "gpuType": wanted.gpu_type,
            "template": template,
        },
    }


def render_pod(replica: Obj) -> Obj:
    """The one pod of an EngineReplica."""
    meta, template = replica["metadata"], replica["spec"]["template"]
    spec = {**template["spec"]}
    spec["initContainers"] = [
        {**item, "env": [*item["env"], {"name": "RH_REPLICA_UID", "value": meta["uid"]}]}
        if item["name"] == "agent"
        else item
        for item in spec["initContainers"]
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            **_copied(template["metadata"]),
            "ownerReferences": [owner(ENGINE_REPLICA.api_version, ENGINE_REPLICA.kind, meta["name"], meta["uid"])],
        },
        "spec": spec,
    }


def _copied(metadata: Obj) -> Obj:
    return {name: dict(metadata[name]) for name in ("labels", "annotations") if name in metadata}


def render_drain(replica: Obj, deadline: str | None) -> Obj:
    """Applied to start a drain, or without a deadline to call it off. The UID keeps it from making an object."""
    meta = replica["metadata"]
    obj: Obj = {
        "apiVersion": ENGINE_REPLICA.api_version,
        "kind": ENGINE_REPLICA.kind,
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
    }
    if deadline is not None:
        obj["spec"] = {"drain": {"deadline": deadline}}
    return obj


def render_redis_secret(namespace: str, username: str, password: str) -> Obj:
    """What the agents of one namespace log in to Redis with."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": REDIS_SECRET, "namespace": namespace, "labels": dict(OURS)},
        "type": "Opaque",
        "data": {
            "username": b64encode(username.encode()).decode(),
            "password": b64encode(password.encode()).decode(),
        },
    }


def owner(api_version: str, kind: str, name: str, uid: str) -> Obj:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
