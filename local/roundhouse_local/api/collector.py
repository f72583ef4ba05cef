"""Owner-reference garbage collection, in the background.

Dependents of an object that is gone are deleted, and so are objects that come with an owner that does not exist: an
owner deleted between a controller's read and its create leaves nothing behind.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from roundhouse_operator.cluster import Obj

from roundhouse_local.api.history import Change
from roundhouse_local.api.store import Key, Store

logger = logging.getLogger(__name__)

Delete = Callable[..., Awaitable[None]]


class Collector:
    def __init__(self, store: Store, delete: Delete) -> None:
        self._store = store
        self._delete = delete
        self._places: dict[str, Key] = {}
        self._dependents: dict[str, set[str]] = {}
        self._suspects: dict[str, None] = {}
        self._wake = asyncio.Event()
        store.listen(self._note)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.collect()

    async def collect(self) -> int:
        """Delete what has lost all its owners; returns how many objects that was."""
        count = 0
        while self._suspects:
            uid = next(iter(self._suspects))
            del self._suspects[uid]
            key = self._places.get(uid)
            stored = self._store.find(key) if key else None
            if key is None or stored is None or not self._orphaned(key, stored.obj):
                continue
            logger.debug("collected", extra={"kind": key.kind.kind, "object": f"{key.namespace}/{key.name}"})
            await self._delete(key.kind, key.namespace, key.name, uid=uid)
            count += 1
        return count

    def _note(self, key: Key, change: Change) -> None:
        uid = change.after["metadata"]["uid"]
        if change.type == "DELETED":
            self._places.pop(uid, None)
            for reference in _owners(change.after):
                self._dependents.get(reference["uid"], set()).discard(uid)
            self._suspects.update(dict.fromkeys(self._dependents.pop(uid, ())))
        else:
            self._places[uid] = key
            for reference in _owners(change.after):
                self._dependents.setdefault(reference["uid"], set()).add(uid)
            if _owners(change.after) and "deletionTimestamp" not in change.after["metadata"]:
                self._suspects[uid] = None
        if self._suspects:
            self._wake.set()

    def _orphaned(self, key: Key, obj: Obj) -> bool:
        owners = _owners(obj)
        return bool(owners) and not any(self._exists(reference["uid"], key.namespace) for reference in owners)

    def _exists(self, uid: str, namespace: str) -> bool:
        owner = self._places.get(uid)
        return owner is not None and owner.namespace in ("", namespace)


def _owners(obj: Obj) -> list[Obj]:
    return obj["metadata"].get("ownerReferences") or []
