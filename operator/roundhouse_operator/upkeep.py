"""Keeps a service's companions as they should be, and says who else has a hand in them.

Looked at once per service, and again when a resync says so; written only when something differs. Objects of that name
that belong to somebody else are left alone.
"""

import logging

from roundhouse_operator.cluster import NETWORK_POLICY, Cluster, ClusterError, Conflict, Kind, Obj, find
from roundhouse_operator.companions import companions, holds
from roundhouse_operator.names import companion_name
from roundhouse_operator.settings import Settings

log = logging.getLogger(__name__)


class Upkeep:
    """``keep`` returns what is in the way, nothing when all is well."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._done: dict[str, str] = {}
        self._dropped: dict[str, str] = {}

    def forget(self, key: str | None = None) -> None:
        """Somebody may have changed something, of one service or of all."""
        if key is None:
            self._done.clear()
        else:
            self._done.pop(key, None)
            self._dropped.pop(key, None)

    async def keep(self, key: str, service: Obj) -> str:
        """Raises `ClusterError` for anything but a conflict."""
        uid = service["metadata"]["uid"]
        if self._done.get(key) == uid or "deletionTimestamp" in service["metadata"]:
            return ""
        trouble = [await self._keep_one(kind, obj, uid) for kind, obj in companions(service, self._settings)]
        if not self._settings.network_policies and self._dropped.get(key) != uid:
            await self._drop(NETWORK_POLICY, service)
            self._dropped[key] = uid
        found = "; ".join(text for text in trouble if text)
        if not found:
            self._done[key] = uid
        return found

    async def _keep_one(self, kind: Kind, wanted: Obj, uid: str) -> str:
        meta = wanted["metadata"]
        there = await find(self._cluster, kind, meta["namespace"], meta["name"])
        if there is not None and not _owned_by(there, uid):
            return f"{kind.kind} {meta['name']} belongs to somebody else"
        if there is not None and holds(there["spec"], wanted["spec"]):
            return ""
        try:
            await self._cluster.apply(kind, wanted)
        except Conflict as error:
            log.warning("apply_conflict", extra={"kind": kind.kind, "object": meta["name"], "error": str(error)})
            return f"{kind.kind} {meta['name']}: {error}"
        return ""

    async def _drop(self, kind: Kind, service: Obj) -> None:
        """What an earlier setting made. Without the right to look there is nothing of ours."""
        meta = service["metadata"]
        try:
            there = await find(self._cluster, kind, meta["namespace"], companion_name(meta["name"]))
        except ClusterError as error:
            if error.status == 403:
                return
            raise
        if there is not None and _owned_by(there, meta["uid"]):
            name, uid = there["metadata"]["name"], there["metadata"]["uid"]
            await self._cluster.delete(kind, meta["namespace"], name, uid=uid)


def _owned_by(obj: Obj, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences") or ())
