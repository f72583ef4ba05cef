"""The election, against the in-memory API and clocks by hand."""

import asyncio
from collections.abc import Callable

import pytest
from roundhouse_local.api import MemoryCluster
from roundhouse_operator.cluster import ClusterError, Obj
from roundhouse_operator.leader import LEASE, Election, Leader


class Brittle(MemoryCluster):
    broken = False

    async def get(self, *args: object) -> Obj:
        if self.broken:
            raise ClusterError("no answer", 0)
        return await super().get(*args)  # type: ignore[arg-type]


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Setup:
    def __init__(self) -> None:
        self.cluster = Brittle()
        self.clock = Clock()

    def candidate(self, name: str, clock: Callable[[], float] | None = None, **changes: float) -> Leader:
        election = Election("ns", "operator", name, **changes)  # type: ignore[arg-type]
        monotonic = clock or self.clock
        return Leader(self.cluster, election, clock=self.clock, monotonic=monotonic)

    async def spec(self) -> Obj:
        found: Obj = (await self.cluster.get(LEASE, "ns", "operator"))["spec"]
        return found


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def test_the_first_one_leads_and_renews(setup: Setup) -> None:
    a, b = setup.candidate("a"), setup.candidate("b")
    assert await a.try_once()
    assert a.leads
    assert not await b.try_once()
    assert not b.leads
    before = await setup.spec()
    setup.clock.now += 3
    assert await a.try_once()
    after = await setup.spec()
    assert after["renewTime"] > before["renewTime"]
    assert after["acquireTime"] == before["acquireTime"]
    assert (after["holderIdentity"], after["leaseTransitions"]) == ("a", 0)


async def test_a_silent_leader_is_replaced_after_its_duration_and_has_stopped_by_then(setup: Setup) -> None:
    a, b = setup.candidate("a"), setup.candidate("b")
    await a.try_once()
    assert not await b.try_once()
    setup.clock.now += 14
    assert not a.leads
    assert not await b.try_once()
    setup.clock.now += 1
    assert await b.try_once()
    assert (await setup.spec())["leaseTransitions"] == 1
    assert not await a.try_once()


async def test_a_lease_that_changes_is_alive_whatever_its_times_say(setup: Setup) -> None:
    a, b = setup.candidate("a"), setup.candidate("b")
    await a.try_once()
    for _ in range(10):
        assert not await b.try_once()
        setup.clock.now += 10
        await a.try_once()
    assert not await b.try_once()


async def test_of_two_at_once_only_one_leads(setup: Setup) -> None:
    candidates = [setup.candidate(name) for name in "abcde"]
    results = await asyncio.gather(*(candidate.try_once() for candidate in candidates))
    assert sum(results) == 1
    setup.clock.now += 100
    for candidate in candidates:
        await candidate.try_once()
    setup.clock.now += 100
    results = await asyncio.gather(*(candidate.try_once() for candidate in candidates))
    assert sum(results) == 1


async def test_a_released_lease_is_taken_at_once(setup: Setup) -> None:
    a, b = setup.candidate("a"), setup.candidate("b")
    await a.try_once()
    assert not await b.try_once()
    await a.release()
    assert not a.leads
    assert await b.try_once()
    await a.release()  # not its own any more
    assert (await setup.spec())["holderIdentity"] == "b"


async def test_a_release_that_fails_is_only_told(setup: Setup) -> None:
    a = setup.candidate("a")
    await a.try_once()
    setup.cluster.broken = True
    await a.release()
    assert not a.leads


async def test_no_answer_is_no_lease(setup: Setup) -> None:
    a = setup.candidate("a")
    setup.cluster.broken = True
    before = a.turned
    setup.clock.now += 5
    assert not await a.try_once()
    assert a.turned > before


async def test_acquire_waits_and_hold_ends_when_another_leads(setup: Setup) -> None:
    a = setup.candidate("a", period_s=0.001)
    await asyncio.wait_for(a.acquire(), 5)
    holding = asyncio.create_task(a.hold())
    await asyncio.sleep(0.01)
    assert not holding.done()
    lease = await setup.cluster.get(LEASE, "ns", "operator")
    lease["spec"]["holderIdentity"] = "b"
    lease["metadata"].pop("resourceVersion")
    await setup.cluster.apply(LEASE, {key: lease[key] for key in ("metadata", "spec")})
    await asyncio.wait_for(holding, 5)
    waiting = asyncio.create_task(setup.candidate("c", period_s=0.001).acquire())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    setup.clock.now += 100
    await asyncio.wait_for(waiting, 5)


async def test_hold_ends_when_renewing_fails_for_too_long(setup: Setup) -> None:
    a = setup.candidate("a", period_s=0.001)
    await a.acquire()
    setup.cluster.broken = True
    holding = asyncio.create_task(a.hold())
    await asyncio.sleep(0.01)
    assert not holding.done()
    setup.clock.now += 11
    await asyncio.wait_for(holding, 5)
