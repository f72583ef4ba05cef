"""The catalogue's publisher, against a store in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from roundhouse_kv.catalogue_store import Catalogue
from roundhouse_kv.errors import RedisUnavailable, StaleTerm, WireError
from roundhouse_kv.records import ServiceEntry
from roundhouse_operator.catalogue import CataloguePublisher

from tests.unit.roundhouse_operator.world import FakeStore, until


def entry(name: str, uid: str = "u") -> ServiceEntry:
    return ServiceEntry(namespace="ns", name=name, uid=uid, served_names=(name,))


class BrittleStore(FakeStore):
    """Fails as often as told."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []
        self.unreadable = False

    async def publish(self, term: int, services: dict[str, ServiceEntry]) -> int:
        if self.errors:
            raise self.errors.pop()
        return await super().publish(term, services)

    async def read(self) -> Catalogue | None:
        if self.unreadable:
            raise WireError("catalogue: version 9")
        return await super().read()


class Setup:
    def __init__(self, *, may_lead: Callable[[], bool] = lambda: True) -> None:
        self.store = BrittleStore()
        self.stamps: list[tuple[int, int] | None] = []
        self.found: list[str] = []
        self.publisher = CataloguePublisher(
            self.store, on_stamp=self.stamps.append, on_found=self.found.append, may_lead=may_lead, retry_s=0.001
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.publisher.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_nothing_is_published_before_every_service_was_seen() -> None:
    setup = Setup()
    async with setup.running():
        setup.publisher.expect({"ns/a", "ns/b"})
        setup.publisher.put("ns/a", entry("a"))
        setup.publisher.seen("ns/a")
        await settle()
        assert setup.store.services == {}
        setup.publisher.put("ns/b", entry("b"))
        setup.publisher.seen("ns/b")
        await until(lambda: set(setup.store.services) == {"ns/a", "ns/b"})
    assert setup.publisher.stamp == (1, 1)
    assert setup.stamps == [(1, 1)]


async def test_an_installation_without_services_has_an_empty_catalogue() -> None:
    setup = Setup()
    async with setup.running():
        setup.publisher.expect(set())
        await until(lambda: setup.stamps)


async def test_changes_are_published_at_once_and_equal_entries_not_at_all() -> None:
    setup = Setup()
    async with setup.running():
        setup.publisher.expect(set())
        setup.publisher.put("ns/a", entry("a"))
        await until(lambda: "ns/a" in setup.store.services)
        count = len(setup.stamps)
        setup.publisher.put("ns/a", entry("a"))
        setup.publisher.remove("ns/other")
        await settle()
        assert len(setup.stamps) == count
        setup.publisher.remove("ns/a")
        await until(lambda: setup.store.services == {})


async def test_a_stored_entry_is_kept_until_its_service_is_seen_and_its_key_reported() -> None:
    setup = Setup()
    setup.store.services = {"ns/old": entry("old"), "ns/a": entry("a", "before")}
    setup.publisher.put("ns/a", entry("a", "now"))
    async with setup.running():
        setup.publisher.expect(set())
        await until(lambda: setup.stamps)
        assert setup.found == ["ns/old"]
        assert setup.store.services["ns/a"].uid == "now"
        assert "ns/old" in setup.store.services
        setup.publisher.remove("ns/old")
        await until(lambda: "ns/old" not in setup.store.services)


async def test_an_unreadable_stored_catalogue_is_replaced() -> None:
    setup = Setup()
    setup.store.unreadable = True
    async with setup.running():
        setup.publisher.put("ns/a", entry("a"))
        setup.publisher.expect(set())
        await until(lambda: "ns/a" in setup.store.services)


async def test_it_is_published_again_when_asked() -> None:
    setup = Setup()
    async with setup.running():
        setup.publisher.put("ns/a", entry("a"))
        setup.publisher.expect(set())
        await until(lambda: setup.store.services)
        setup.store.services = {}
        setup.publisher.republish()
        await until(lambda: setup.store.services)


@pytest.mark.parametrize(
    ("error", "term"), [(RedisUnavailable("no answer"), 1), (StaleTerm("another"), 2)], ids=["unavailable", "stale"]
)
async def test_a_failed_publication_is_tried_again(error: Exception, term: int) -> None:
    setup = Setup()
    setup.store.errors = [error]
    async with setup.running():
        setup.publisher.put("ns/a", entry("a"))
        setup.publisher.expect(set())
        await until(lambda: setup.store.services)
    assert setup.publisher.stamp is not None
    assert setup.publisher.stamp[0] == term


async def test_who_does_not_lead_takes_no_term() -> None:
    setup = Setup(may_lead=lambda: False)
    async with setup.running():
        setup.publisher.put("ns/a", entry("a"))
        setup.publisher.expect(set())
        await settle()
    assert setup.store.term == 0
    assert setup.store.services == {}
