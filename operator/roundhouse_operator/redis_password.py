"""The password of this installation's Redis: in a Secret that the first operator makes and nobody changes."""

import secrets
from base64 import b64decode, b64encode

from roundhouse_operator.cluster import SECRET, AlreadyExists, Cluster, ClusterError, Kind, NotFound, Obj
from roundhouse_operator.errors import BadSettings
from roundhouse_operator.names import OURS

DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")


async def redis_password(cluster: Cluster, namespace: str, secret: str, owner: str) -> str:
    """Read it from key ``password``; made at random when the Secret is missing. ``owner``: the operator's Deployment.

    Raises `BadSettings` when the Secret has no such key, and `ClusterError`.
    """
    try:
        found = await cluster.get(SECRET, namespace, secret)
    except NotFound:
        try:
            found = await cluster.create(SECRET, await _new_secret(cluster, namespace, secret, owner))
        except AlreadyExists:
            found = await cluster.get(SECRET, namespace, secret)
    try:
        return b64decode(found["data"]["password"]).decode()
    except (KeyError, TypeError, ValueError) as error:
        raise BadSettings(f"Secret {namespace}/{secret} has no key password; add it or delete the Secret") from error


async def _new_secret(cluster: Cluster, namespace: str, secret: str, owner: str) -> Obj:
    meta: Obj = {"name": secret, "namespace": namespace, "labels": dict(OURS)}
    try:
        uid = (await cluster.get(DEPLOYMENT, namespace, owner))["metadata"]["uid"]
        meta["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": owner, "uid": uid}]
    except ClusterError:  # run outside a cluster, or without the right to look: then the Secret simply stays
        pass
    password = b64encode(secrets.token_urlsafe(32).encode()).decode()
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": {"password": password}}
