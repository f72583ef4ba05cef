"""The work queue: coalescing, one worker per key, back-off, postponed keys."""

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st
from roundhouse_operator.queue import Backlog, Backoff, WorkQueue


def test_many_adds_are_one_look() -> None:
    backlog = Backlog()
    for _ in range(5):
        backlog.add("a", 0)
    assert (backlog.take(1), backlog.take(1)) == ("a", None)
    assert (backlog.stats.added, backlog.stats.coalesced, backlog.stats.taken) == (5, 4, 1)
    assert backlog.stats.waited_s == 1


def test_keys_come_in_the_order_of_their_first_add() -> None:
    backlog = Backlog()
    for key in ("a", "b", "a", "c"):
        backlog.add(key, 0)
    assert [backlog.take(0) for _ in range(4)] == ["a", "b", "c", None]


def test_a_key_added_while_processed_comes_once_more_after_it_is_done() -> None:
    backlog = Backlog()
    backlog.add("a", 0)
    assert backlog.take(0) == "a"
    backlog.add("a", 1)
    backlog.add("a", 1)
    assert backlog.take(1) is None
    backlog.done("a")
    assert backlog.take(2) == "a"
    backlog.done("a")
    assert backlog.take(3) is None
    assert backlog.idle


def test_postponed_keys_come_when_due_at_the_earliest_time_asked_for() -> None:
    backlog = Backlog()
    backlog.add_at("a", 10)
    backlog.add_at("a", 5)
    backlog.add_at("a", 7)
    assert backlog.next_time() == 5
    assert backlog.take(4) is None
    assert backlog.take(5) == "a"
    backlog.done("a")
    assert backlog.take(20) is None
    assert backlog.next_time() is None


def test_a_postponed_key_that_is_processed_when_due_comes_afterwards() -> None:
    backlog = Backlog()
    backlog.add("a", 0)
    backlog.take(0)
    backlog.add_at("a", 1)
    assert backlog.take(2) is None
    backlog.done("a")
    assert backlog.take(2) == "a"


def test_failures_wait_twice_as_long_each_time_until_one_succeeds() -> None:
    backlog = Backlog(Backoff(first_s=1, longest_s=5, jitter=0))
    waits = [backlog.failed("a", 0) for _ in range(5)]
    assert waits == [1, 2, 4, 5, 5]
    assert backlog.stats.failed == 5
    backlog.succeeded("a")
    assert backlog.failed("a", 0) == 1
    assert backlog.failed("b", 0) == 1


def test_jitter_only_shortens() -> None:
    backoff = Backoff(first_s=1, longest_s=100, jitter=0.5)
    waits = {backoff.wait(3, random.Random(seed)) for seed in range(50)}
    assert len(waits) > 10
    assert all(2 <= wait <= 4 for wait in waits)


def test_very_many_failures_do_not_overflow() -> None:
    assert Backoff(longest_s=300, jitter=0).wait(100_000, random.Random(0)) == 300


@given(st.lists(st.tuples(st.sampled_from("asdf"), st.sampled_from("kjl")), max_size=60))
def test_no_key_is_lost_and_none_is_processed_twice_at_a_time(steps: list[tuple[str, str]]) -> None:
    backlog = Backlog(Backoff(jitter=0))
    wanted: set[str] = set()
    running: set[str] = set()
    now = 0.0
    for action, key in steps:
        now += 0.05
        if action == "a":
            backlog.add(key, now)
            wanted.add(key)
        elif action == "s":
            backlog.add_at(key, now + 0.1)
            wanted.add(key)
        elif action == "d":
            taken = backlog.take(now)
            if taken is not None:
                assert taken not in running
                running.add(taken)
                wanted.discard(taken)
        elif running:
            key = running.pop()
            backlog.failed(key, now)
            wanted.add(key)
            backlog.done(key)
    for key in running:
        backlog.done(key)
    while (taken := backlog.take(now + 1000)) is not None:
        wanted.discard(taken)
        backlog.done(taken)
    assert wanted == set()
    assert backlog.idle
    assert backlog.depth == 0


async def test_a_waiting_worker_gets_a_key_at_once() -> None:
    queue = WorkQueue()
    worker = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    assert await asyncio.wait_for(worker, 1) == "a"


async def test_a_waiting_worker_gets_a_postponed_key_when_it_is_due() -> None:
    queue = WorkQueue()
    queue.add_after("late", 0.02)
    queue.add_after("now", 0)
    assert await asyncio.wait_for(queue.take(), 1) == "now"
    assert await asyncio.wait_for(queue.take(), 1) == "late"


async def test_a_key_that_failed_comes_back() -> None:
    queue = WorkQueue(Backlog(Backoff(first_s=0.01, jitter=0)))
    queue.add("a")
    key = await queue.take()
    assert queue.failed(key) == 0.01
    queue.done(key)
    assert await asyncio.wait_for(queue.take(), 1) == "a"
    queue.succeeded("a")
    assert queue.failed("a") == 0.01


async def test_many_workers_never_share_a_key() -> None:
    queue = WorkQueue()
    running: set[str] = set()
    seen: dict[str, int] = {}

    async def work() -> None:
        while True:
            key = await queue.take()
            assert key not in running
            running.add(key)
            seen[key] = seen.get(key, 0) + 1
            await asyncio.sleep(0)
            running.discard(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    for i in range(200):
        queue.add(f"k{i % 7}")
        if i % 3 == 0:
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert queue.backlog.idle
    assert set(seen) == {f"k{i}" for i in range(7)}
    assert not any(worker.done() for worker in workers)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
