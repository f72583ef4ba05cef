import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_local.api import MemoryCluster
from roundhouse_operator.cluster import CONFIG_MAP, SECRET, ClusterError, Expired, WatchEvent

from tests.unit.roundhouse_local.objects import obj


async def take(events: AsyncIterator[WatchEvent], count: int) -> list[tuple[str, str]]:
    """Types and names of the next events, bookmarks left out."""
    found = []
    async with asyncio.timeout(5):
        async for event in events:
            if event.type != "BOOKMARK":
                found.append((event.type, event.object["metadata"]["name"]))
            if len(found) == count:
                break
    return found


async def test_watch_tells_what_came_after_the_list(cluster: MemoryCluster) -> None:
    await cluster.create(CONFIG_MAP, obj("old"))
    _, version = await cluster.list(CONFIG_MAP)
    await cluster.create(CONFIG_MAP, obj("a"))
    await cluster.apply(CONFIG_MAP, obj("a", data={"x": "1"}))
    await cluster.delete(CONFIG_MAP, "default", "a")
    seen = await take(cluster.watch(CONFIG_MAP, None, version), 3)
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_watch_without_a_version_begins_with_what_is_there(cluster: MemoryCluster) -> None:
    await cluster.create(CONFIG_MAP, obj("a"))
    events = cluster.watch(CONFIG_MAP, None, "")
    assert await take(events, 1) == [("ADDED", "a")]


async def test_watch_is_woken_by_a_change(cluster: MemoryCluster) -> None:
    _, version = await cluster.list(CONFIG_MAP)
    waiting = asyncio.create_task(take(cluster.watch(CONFIG_MAP, None, version), 1))
    await asyncio.sleep(0)
    await cluster.create(CONFIG_MAP, obj("a"))
    assert await waiting == [("ADDED", "a")]


async def test_watch_sees_only_its_kind_and_namespace(cluster: MemoryCluster) -> None:
    _, version = await cluster.list(CONFIG_MAP)
    await cluster.create(SECRET, obj("secret"))
    await cluster.create(CONFIG_MAP, obj("far", "other"))
    await cluster.create(CONFIG_MAP, obj("near"))
    assert await take(cluster.watch(CONFIG_MAP, "default", version), 1) == [("ADDED", "near")]


async def test_object_that_gains_and_loses_the_label_is_added_and_deleted(cluster: MemoryCluster) -> None:
    _, version = await cluster.list(CONFIG_MAP)
    await cluster.apply(CONFIG_MAP, obj("a"))
    await cluster.apply(CONFIG_MAP, obj("a", labels={"app": "x"}))
    await cluster.apply(CONFIG_MAP, obj("a", labels={"app": "x"}, data={"y": "1"}))
    await cluster.apply(CONFIG_MAP, obj("a", labels={"app": "z"}))
    await cluster.delete(CONFIG_MAP, "default", "a")
    await cluster.apply(CONFIG_MAP, obj("last", labels={"app": "x"}))
    seen = await take(cluster.watch(CONFIG_MAP, None, version, {"app": "x"}), 4)
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "last")]


async def test_deleted_event_carries_the_version_of_the_deletion(cluster: MemoryCluster) -> None:
    made = await cluster.create(CONFIG_MAP, obj("a"))
    await cluster.delete(CONFIG_MAP, "default", "a")
    async for event in cluster.watch(CONFIG_MAP, None, made["metadata"]["resourceVersion"]):
        assert event.type == "DELETED"
        assert int(event.object["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
        break


async def test_idle_watch_gets_bookmarks_that_move_with_the_store(cluster: MemoryCluster) -> None:
    _, version = await cluster.list(CONFIG_MAP)
    made = await cluster.create(SECRET, obj("a"))
    async for event in cluster.watch(CONFIG_MAP, None, version):
        assert event.type == "BOOKMARK"
        assert event.object["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        break


async def test_version_older_than_the_history_has_expired() -> None:
    cluster = MemoryCluster(history_limit=2)
    _, version = await cluster.list(CONFIG_MAP)
    for name in "abc":
        await cluster.create(CONFIG_MAP, obj(name))
    with pytest.raises(Expired, match="too old resource version"):
        await take(cluster.watch(CONFIG_MAP, None, version), 1)


async def test_watch_that_falls_behind_expires() -> None:
    cluster = MemoryCluster(history_limit=2)
    _, version = await cluster.list(CONFIG_MAP)
    events = cluster.watch(CONFIG_MAP, None, version)
    await cluster.create(CONFIG_MAP, obj("first"))
    assert await take(events, 1) == [("ADDED", "first")]
    events = cluster.watch(CONFIG_MAP, None, version)
    await cluster.create(CONFIG_MAP, obj("second"))
    await cluster.create(CONFIG_MAP, obj("third"))
    with pytest.raises(Expired):
        await take(events, 1)


async def test_forgotten_history_expires_every_older_version(cluster: MemoryCluster) -> None:
    _, version = await cluster.list(CONFIG_MAP)
    await cluster.create(CONFIG_MAP, obj("a"))
    cluster.forget_history()
    with pytest.raises(Expired):
        await take(cluster.watch(CONFIG_MAP, None, version), 1)


@pytest.mark.parametrize("version", ["x", "99"])
async def test_version_that_never_was_is_refused(cluster: MemoryCluster, version: str) -> None:
    with pytest.raises(ClusterError, match=version):
        await take(cluster.watch(CONFIG_MAP, None, version), 1)


async def test_dropped_watch_ends_and_another_goes_on(cluster: MemoryCluster) -> None:
    _, version = await cluster.list(CONFIG_MAP)
    events = cluster.watch(CONFIG_MAP, None, version)
    ended = asyncio.create_task(take(events, 1))
    await asyncio.sleep(0)
    cluster.drop_watches()
    assert await ended == []
    await cluster.create(CONFIG_MAP, obj("a"))
    assert await take(cluster.watch(CONFIG_MAP, None, version), 1) == [("ADDED", "a")]


NAMES = st.sampled_from("abc")
LABELS = st.sampled_from([None, {"app": "x"}, {"app": "y"}])
STEPS = st.lists(st.one_of(st.tuples(NAMES, LABELS), NAMES, st.just("reconnect")), max_size=30)


@given(STEPS, st.sampled_from([None, {"app": "x"}]))
def test_watcher_that_reconnects_misses_nothing(steps: list[object], labels: dict[str, str] | None) -> None:
    """Whatever happens, and wherever the watch breaks, the events lead from the first list to the last one."""

    async def run() -> None:
        cluster = MemoryCluster(bookmark_s=0.001)
        _, version = await cluster.list(CONFIG_MAP, None, labels)
        known: dict[str, str] = {}
        for step in [*steps, "reconnect"]:
            match step:
                case "reconnect":
                    version = await catch_up(cluster, version, labels, known)
                case str(name):
                    await cluster.delete(CONFIG_MAP, "default", name)
                case (str(name), label):
                    await cluster.apply(CONFIG_MAP, obj(name, labels=label))
        items, _ = await cluster.list(CONFIG_MAP, None, labels)
        assert known == {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}

    asyncio.run(run())


async def catch_up(cluster: MemoryCluster, version: str, labels: dict[str, str] | None, known: dict[str, str]) -> str:
    """Read a new watch up to its first bookmark; returns from where to go on."""
    async for event in cluster.watch(CONFIG_MAP, None, version, labels):
        metadata = event.object["metadata"]
        match event.type:
            case "BOOKMARK":
                return str(metadata["resourceVersion"])
            case "DELETED":
                assert known.pop(metadata["name"], None) is not None
            case "ADDED":
                assert metadata["name"] not in known
                known[metadata["name"]] = metadata["resourceVersion"]
            case "MODIFIED":
                assert int(known[metadata["name"]]) < int(metadata["resourceVersion"])
                known[metadata["name"]] = metadata["resourceVersion"]
    raise AssertionError("the watch ended by itself")
