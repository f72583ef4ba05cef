"""Watches that turn changes in the cluster into keys of services.

One loop per kind and namespace: list, then watch from the list's version on; a watch that ends is taken up where it
was, one that is too old begins with a list again. What a list no longer holds is reported too: an object that was
deleted while no watch was open has no other way to be noticed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from roundhouse_operator.cluster import Cluster, ClusterError, Expired, Kind, Obj
from roundhouse_operator.names import SERVICE_LABEL
from roundhouse_operator.queue import Backoff

log = logging.getLogger(__name__)


class Source(Protocol):
    """Something that puts keys into the queue. ``heard`` is when it last was in touch with the API server."""

    heard: float

    async def run(self) -> None:
        """Until cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    """What one source watches. ``namespace`` None: all of them."""

    kind: Kind
    namespace: str | None = None
    labels: Mapping[str, str] | None = None


class WatchSource:
    """``on_key`` hears the key of the service that a changed object belongs to; ``heard`` is when it was in touch."""

    def __init__(
        self,
        cluster: Cluster,
        selection: Selection,
        key_of: Callable[[Obj], str | None],
        on_key: Callable[[str], None],
        *,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._selection = selection
        self._key_of = key_of
        self._on_key = on_key
        self._backoff = backoff or Backoff(first_s=0.2, longest_s=15.0)
        self._clock = clock
        self._known: dict[tuple[str, str], str] = {}
        self.heard = clock()

    async def run(self) -> None:
        """Until cancelled."""
        random, failures, version = Random(), 0, ""
        while True:
            try:
                if not version:
                    version = await self._list()
                started = self._clock()
                version = await self._follow(version)
                failures = 0
                if self._clock() - started < self._backoff.first_s:
                    await asyncio.sleep(self._backoff.first_s)
            except Expired:
                version = ""
            except ClusterError as error:
                failures += 1
                version = "" if error.status in (400, 404, 410, 504) else version
                wait = self._backoff.wait(failures, random)
                log.warning(
                    "watch_failed",
                    extra={"kind": self._selection.kind.kind, "error": str(error), "retry_s": round(wait, 2)},
                )
                await asyncio.sleep(wait)

    async def _list(self) -> str:
        selection = self._selection
        objs, version = await self._cluster.list(selection.kind, selection.namespace, selection.labels)
        self.heard = self._clock()
        before, self._known = self._known, {}
        for obj in objs:
            self._report(obj)
        for name, key in before.items():
            if name not in self._known:
                self._on_key(key)
        return version

    async def _follow(self, version: str) -> str:
        """Returns the version to go on from when the server ends the watch."""
        selection = self._selection
        async for event in self._cluster.watch(selection.kind, selection.namespace, version, selection.labels):
            self.heard = self._clock()
            version = event.object["metadata"].get("resourceVersion") or version
            if event.type == "BOOKMARK":
                continue
            self._report(event.object)
            if event.type == "DELETED":
                self._known.pop(_name(event.object), None)
        return version

    def _report(self, obj: Obj) -> None:
        key = self._key_of(obj)
        if key is not None:
            self._known[_name(obj)] = key
            self._on_key(key)


def own_key(obj: Obj) -> str:
    """Key of an InferenceService."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}"


def labelled_key(obj: Obj) -> str | None:
    """Key of the service that an EngineReplica or pod carries as a label."""
    meta = obj["metadata"]
    service = (meta.get("labels") or {}).get(SERVICE_LABEL)
    return f"{meta['namespace']}/{service}" if service else None


def _name(obj: Obj) -> tuple[str, str]:
    meta = obj["metadata"]
    return meta["namespace"], meta["name"]
