"""The verbs of the API, with the rules that a real server has for each.

Namespaces exist implicitly. Everything runs on one event loop: a verb never awaits between reading and writing, so no
locks are needed. ``async with MemoryCluster(…)`` also runs the garbage collector and the scheduler; without it
(in unit tests) `settle` does their work when asked.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Protocol, Self

from roundhouse_operator.cluster import (
    FIELD_MANAGER,
    POD,
    SECRET,
    AlreadyExists,
    ClusterError,
    Conflict,
    Invalid,
    Kind,
    Obj,
    WatchEvent,
)

from roundhouse_local.api import merge
from roundhouse_local.api.collector import Collector
from roundhouse_local.api.deletion import doomed, terminating
from roundhouse_local.api.history import DEFAULT_LIMIT, Scope, event_for
from roundhouse_local.api.metadata import DEFAULT_NAMESPACE, SERVER_FIELDS, Stamps, check_metadata, check_type
from roundhouse_local.api.scheduler import Scheduler
from roundhouse_local.api.selectors import matches
from roundhouse_local.api.store import Key, Store, Stored, resource_name
from roundhouse_local.api.tree import clone

NODE = Kind("v1", "Node", "nodes")
_CLUSTER_SCOPED = frozenset({NODE, Kind("v1", "Namespace", "namespaces")})
_WITHOUT_STATUS = frozenset({"Secret", "ConfigMap", "Event", "Lease", "NetworkPolicy"})


class Validator(Protocol):
    """What knows the schemas. Both raise `Invalid` naming the field."""

    def schema(self, kind: Kind) -> merge.Schema | None: ...

    def check(self, kind: Kind, obj: Obj, before: Obj | None) -> None: ...


class NoSchemas:
    """Accepts everything, as for kinds that have no CRD."""

    def schema(self, kind: Kind) -> merge.Schema | None:
        return None

    def check(self, kind: Kind, obj: Obj, before: Obj | None) -> None:
        return None


class MemoryCluster:
    """The operator's `Cluster`, in memory. Arguments beyond that protocol are for the kubelet and the CLI."""

    def __init__(
        self,
        validator: Validator | None = None,
        *,
        stamps: Stamps | None = None,
        history_limit: int = DEFAULT_LIMIT,
        bookmark_s: float = 10.0,
    ) -> None:
        self._store = Store(history_limit)
        self._validator = validator or NoSchemas()
        self._stamps = stamps or Stamps(time.time)
        self._bookmark_s = bookmark_s
        self._watch_generation = 0
        self._collector = Collector(self._store, self.delete)
        self._scheduler = Scheduler(self._store, NODE, self._stamps)
        self._tasks = AsyncExitStack()

    async def __aenter__(self) -> Self:
        group = await self._tasks.enter_async_context(asyncio.TaskGroup())
        for task in [group.create_task(self._collector.run()), group.create_task(self._scheduler.run())]:
            self._tasks.callback(task.cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop_watches()
        await self._tasks.aclose()

    async def settle(self) -> None:
        """Collect garbage and schedule until there is nothing left to do."""
        while await self._collector.collect() or self._scheduler.schedule():
            pass

    # Verbs of the protocol.

    async def get(self, kind: Kind, namespace: str, name: str) -> Obj:
        await asyncio.sleep(0)
        found: Obj = clone(self._store.get(self._key(kind, namespace, name)).obj)
        return found

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> tuple[list[Obj], str]:
        await asyncio.sleep(0)
        found = [
            clone(stored.obj)
            for key, stored in self._store.items(kind)
            if (namespace is None or key.namespace == namespace) and matches(stored.obj, labels)
        ]
        return found, str(self._store.version)

    async def create(self, kind: Kind, obj: Obj, *, manager: str = FIELD_MANAGER) -> Obj:
        await asyncio.sleep(0)
        new = self._prepare(kind, obj, generate=True)
        self._refuse_existing(kind, new)
        return self._write_new(kind, new, merge.owned_by_update(new, self._validator.schema(kind), manager))

    async def apply(self, kind: Kind, obj: Obj, *, manager: str = FIELD_MANAGER, force: bool = False) -> Obj:
        await asyncio.sleep(0)
        wanted = self._prepare(kind, obj)
        key = self._key_of(kind, wanted)
        live = self._store.find(key)
        _check_preconditions(kind, obj.get("metadata") or {}, live)
        schema = self._validator.schema(kind)
        if live is None:
            first = merge.apply(None, {}, wanted, schema, manager)
            return self._write_new(kind, first.obj, first.owners)
        merged = merge.apply(live.obj, live.owners, wanted, schema, manager, force=force)
        return self._write_changed(key, live, Stored(merged.obj, merged.owners))

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> None:
        await asyncio.sleep(0)
        key = self._key(kind, namespace, name)
        stored = self._store.find(key)
        if stored is None or (uid is not None and stored.obj["metadata"]["uid"] != uid):
            return
        after = terminating(kind, stored.obj, grace_seconds, self._stamps)
        if after is None:
            self._store.remove(key, clone(stored.obj))
        elif after != stored.obj:
            self._store.put(key, Stored(after, stored.owners))

    async def patch_status(self, kind: Kind, namespace: str, name: str, status: Obj, *, uid: str | None = None) -> Obj:
        """With ``uid`` only that very object's status is written; another's is a `Conflict`."""
        await asyncio.sleep(0)
        key = self._key(kind, namespace, name)
        live = self._store.get(key)
        if uid is not None and live.obj["metadata"]["uid"] != uid:
            raise Conflict(f"{resource_name(kind)} {name!r}: uid {uid} is gone", 409)
        new = clone(live.obj)
        new["status"] = clone(status, "status")
        return self._write_changed(key, live, Stored(new, live.owners))

    async def watch(
        self, kind: Kind, namespace: str | None, resource_version: str, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """``resource_version`` "" or "0": the objects of today come first, as ADDED."""
        scope = Scope(namespace, labels)
        generation = self._watch_generation
        version = self._parse_version(resource_version)
        history = self._store.history(kind)
        if version == 0:
            version = self._store.version
            for obj in [stored.obj for _, stored in self._store.items(kind) if scope.holds(stored.obj)]:
                yield WatchEvent("ADDED", clone(obj))
        while generation == self._watch_generation:
            changes = history.since(version)
            for change in changes:
                event = event_for(change, scope)
                version = change.version
                if event is not None:
                    yield event
            if not changes:
                await history.wait(version, self._bookmark_s, lambda: generation != self._watch_generation)
                if generation == self._watch_generation and not history.since(version):
                    version = self._store.version
                    yield _bookmark(kind, version)

    # For tests and the supervisor.

    def drop_watches(self) -> None:
        """End every watch that runs now, as a server does from time to time."""
        self._watch_generation += 1
        for kind in self._store.kinds():
            self._store.history(kind).wake()

    def forget_history(self) -> None:
        """Every resourceVersion of before is too old from now on."""
        for kind in self._store.kinds():
            self._store.history(kind).forget()

    # Parts of the verbs.

    def _key(self, kind: Kind, namespace: str, name: str) -> Key:
        return Key(kind, "" if kind in _CLUSTER_SCOPED else namespace, name)

    def _key_of(self, kind: Kind, obj: Obj) -> Key:
        return self._key(kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])

    def _prepare(self, kind: Kind, obj: Obj, *, generate: bool = False) -> Obj:
        """A copy with type, namespace and name, without what only the server writes."""
        new: Obj = clone(obj)
        check_type(kind, new)
        metadata: Any = new.setdefault("metadata", {})
        if isinstance(metadata, dict):
            for field in SERVER_FIELDS:
                metadata.pop(field, None)
            if generate and "name" not in metadata and metadata.get("generateName"):
                metadata["name"] = f"{metadata['generateName']}{self._stamps.suffix()}"
            if kind not in _CLUSTER_SCOPED:
                metadata.setdefault("namespace", DEFAULT_NAMESPACE)
        check_metadata(kind, metadata, kind not in _CLUSTER_SCOPED)
        if kind.kind not in _WITHOUT_STATUS and kind != NODE:
            new.pop("status", None)
        if kind == SECRET:
            _encode_string_data(new)
        return new

    def _refuse_existing(self, kind: Kind, obj: Obj) -> None:
        there = self._store.find(self._key_of(kind, obj))
        if there is not None:
            dying = "object is being deleted: " if "deletionTimestamp" in there.obj["metadata"] else ""
            raise AlreadyExists(f'{dying}{resource_name(kind)} "{obj["metadata"]["name"]}" already exists', 409)

    def _write_new(self, kind: Kind, new: Obj, owners: merge.Owners) -> Obj:
        self._validator.check(kind, new, None)
        new["metadata"] |= {"uid": self._stamps.uid(), "generation": 1, "creationTimestamp": self._stamps.time()}
        if kind == POD:
            new["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        written: Obj = clone(self._store.put(self._key_of(kind, new), Stored(new, owners)))
        return written

    def _write_changed(self, key: Key, live: Stored, new: Stored) -> Obj:
        if new.obj == live.obj and new.owners == live.owners:
            return clone(live.obj)  # type: ignore[no-any-return]
        self._validator.check(key.kind, new.obj, live.obj)
        if _intent(new.obj) != _intent(live.obj):
            new.obj["metadata"]["generation"] = live.obj["metadata"]["generation"] + 1
        written: Obj = clone(self._store.put(key, new))
        if doomed(new.obj):
            self._store.remove(key, clone(new.obj))
        return written

    def _parse_version(self, resource_version: str) -> int:
        try:
            version = int(resource_version or "0")
        except ValueError:
            raise Invalid(f"resourceVersion: Invalid value: {resource_version!r}", 400) from None
        if version > self._store.version:
            raise ClusterError(f"Too large resource version: {version}, current: {self._store.version}", 504)
        return version


def _encode_string_data(secret: Obj) -> None:
    """``stringData`` is for writing only: it ends up in ``data``."""
    plain = secret.pop("stringData", None) or {}
    if plain:
        coded = {key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()}
        secret["data"] = {**(secret.get("data") or {}), **coded}


def _check_preconditions(kind: Kind, metadata: Any, live: Stored | None) -> None:
    """An apply that names uid or resourceVersion means that very object."""
    if not isinstance(metadata, dict):
        return
    name = metadata.get("name")
    for field in ("uid", "resourceVersion"):
        want = metadata.get(field)
        if want and (live is None or live.obj["metadata"][field] != want):
            have = "no existing object was found" if live is None else f"it is {live.obj['metadata'][field]} now"
            raise Conflict(f'{resource_name(kind)} "{name}": {field} {want} was asked for, {have}', 409)


def _intent(obj: Obj) -> Obj:
    """What generation counts: everything but metadata and status."""
    return {field: value for field, value in obj.items() if field not in ("metadata", "status")}


def _bookmark(kind: Kind, version: int) -> WatchEvent:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    return WatchEvent("BOOKMARK", {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata})
