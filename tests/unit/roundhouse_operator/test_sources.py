"""Watches against the in-memory API: nothing is lost, whatever happens to the watch."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from roundhouse_local.api import MemoryCluster
from roundhouse_operator.cluster import INFERENCE_SERVICE, POD, ClusterError, Kind, Obj, WatchEvent
from roundhouse_operator.names import OURS, SERVICE_LABEL
from roundhouse_operator.queue import Backoff
from roundhouse_operator.sources import Selection, WatchSource, labelled_key, own_key

from tests.unit.roundhouse_operator.world import service, until

QUICK = Backoff(first_s=0.001, longest_s=0.01)


class FlakyCluster(MemoryCluster):
    """Lists and watches fail as often as told."""

    list_errors = 0
    watch_errors = 0
    lists = 0

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> tuple[list[Obj], str]:
        self.lists += 1
        if self.list_errors:
            self.list_errors -= 1
            raise ClusterError("no answer", 0)
        return await super().list(kind, namespace, labels)

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[WatchEvent]:
        if self.watch_errors:
            self.watch_errors -= 1
            raise ClusterError("connection reset", 0)
        async for event in super().watch(*args, **kwargs):
            yield event


class Listener:
    def __init__(self, cluster: MemoryCluster, selection: Selection, key_of: Callable[[Obj], str | None]) -> None:
        self.keys: list[str] = []
        self.source = WatchSource(cluster, selection, key_of, self.keys.append, backoff=QUICK)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.source.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def hears(self, key: str) -> None:
        await until(lambda: key in self.keys)
        self.keys.clear()


def services(cluster: MemoryCluster) -> Listener:
    return Listener(cluster, Selection(INFERENCE_SERVICE), own_key)


async def test_what_is_there_and_what_changes_is_heard() -> None:
    cluster = MemoryCluster(bookmark_s=0.01)
    await cluster.create(INFERENCE_SERVICE, service("a"))
    listener = services(cluster)
    async with listener.running():
        await listener.hears("default/a")
        await cluster.create(INFERENCE_SERVICE, service("b"))
        await listener.hears("default/b")
        await cluster.patch_status(INFERENCE_SERVICE, "default", "b", {"url": "x"})
        await listener.hears("default/b")
        await cluster.delete(INFERENCE_SERVICE, "default", "b")
        await listener.hears("default/b")


async def test_a_watch_that_ends_goes_on_without_a_new_list() -> None:
    cluster = FlakyCluster(bookmark_s=0.01)
    listener = services(cluster)
    async with listener.running():
        await cluster.create(INFERENCE_SERVICE, service("a"))
        await listener.hears("default/a")
        cluster.drop_watches()
        await cluster.create(INFERENCE_SERVICE, service("b"))
        await listener.hears("default/b")
        assert cluster.lists == 1


async def test_what_was_deleted_while_the_watch_was_too_old_is_heard() -> None:
    cluster = FlakyCluster(bookmark_s=10)
    await cluster.create(INFERENCE_SERVICE, service("a"))
    await cluster.create(INFERENCE_SERVICE, service("b"))
    listener = services(cluster)
    async with listener.running():
        await listener.hears("default/b")
        cluster.watch_errors = 1
        cluster.drop_watches()
        await cluster.delete(INFERENCE_SERVICE, "default", "b")
        cluster.forget_history()
        await listener.hears("default/b")
        assert cluster.lists == 2


async def test_failures_are_waited_out() -> None:
    cluster = FlakyCluster(bookmark_s=0.01)
    cluster.list_errors, cluster.watch_errors = 3, 3
    listener = services(cluster)
    async with listener.running():
        await cluster.create(INFERENCE_SERVICE, service("a"))
        await listener.hears("default/a")


async def test_pods_speak_for_the_service_in_their_label() -> None:
    cluster = MemoryCluster(bookmark_s=0.01)
    listener = Listener(cluster, Selection(POD, None, OURS), labelled_key)
    pod: Obj = {"spec": {"containers": []}}
    async with listener.running():
        for name, labels in (("x", {SERVICE_LABEL: "a"}), ("y", {**OURS}), ("z", {**OURS, SERVICE_LABEL: "a"})):
            await cluster.create(POD, {"metadata": {"name": name, "namespace": "ns", "labels": labels}, **pod})
        await listener.hears("ns/a")
        assert listener.keys == []


async def test_bookmarks_show_that_the_watch_is_alive() -> None:
    cluster = MemoryCluster(bookmark_s=0.005)
    listener = services(cluster)
    async with listener.running():
        await asyncio.sleep(0)
        before = listener.source.heard
        await until(lambda: listener.source.heard > before)
        assert listener.keys == []
