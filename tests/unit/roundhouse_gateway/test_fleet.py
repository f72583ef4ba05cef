"""What the gateway makes of catalogue and leases, and what it learns of answers."""

from dataclasses import replace

import msgspec
import pytest
from roundhouse_engines.dialect import Usage
from roundhouse_gateway.bookings import Booking
from roundhouse_gateway.fleet import LESSONS_AT_ONCE
from roundhouse_gateway.pick import Choice, Standing
from roundhouse_gateway.replica import Replica
from roundhouse_gateway.tokens import TextSize
from roundhouse_kv.books_wire import BookOp, decode_message
from roundhouse_kv.records import Profile
from roundhouse_kv.view import SeenLease

from tests.unit.roundhouse_gateway.fakes import PROFILE, Bench, entry, lease, member

USAGE = Usage(1000, 50, 400)


@pytest.fixture
def bench() -> Bench:
    return Bench([member(0), member(1)])


def only(bench: Bench, number: int = 0) -> Replica:
    found: Replica = {r.name: r for r in bench.service.replicas.values()}[f"s-{number}"]
    return found


def choice(replica: Replica, own_s: float = 0.1) -> Choice:
    return Choice(replica.facts, Standing.GOOD, 0, 0.0, own_s, 0.0, own_s)


def test_members_come_and_go_with_the_catalogue(bench: Bench) -> None:
    kept = only(bench, 1)
    bench.view.change(entry([member(1), member(2)]), bench.clock())
    bench.refresh()
    assert sorted(r.name for r in bench.service.order) == ["s-1", "s-2"]
    assert only(bench, 1) is kept


def test_a_member_that_moved_gets_a_new_pool(bench: Bench) -> None:
    before = only(bench)
    bench.view.change(entry([member(0, port=9999), member(1)]), bench.clock())
    bench.refresh()
    assert only(bench) is not before
    assert only(bench).pool.port == 9999


@pytest.mark.parametrize("changes", [{"pod_uid": "not a uuid"}, {"engine": "tpu"}])
def test_a_member_that_cannot_be_used_is_left_out(bench: Bench, changes: dict[str, str]) -> None:
    bench.view.change(entry([member(5, **changes), member(1)]), bench.clock())
    bench.refresh()
    bench.refresh()
    assert [r.name for r in bench.service.order] == ["s-1"]


def test_a_service_that_is_gone_is_forgotten(bench: Bench) -> None:
    bench.feed.views = {}
    bench.feed.catalogue = None if bench.feed.catalogue is None else replace(bench.feed.catalogue, services={})
    bench.refresh()
    assert bench.fleet.services == {}
    assert bench.fleet.resolve("m") is None


def test_a_fresh_exact_lease_is_predictable(bench: Bench) -> None:
    assert (only(bench).predictable, only(bench).reason) == (True, "")
    assert bench.service.digests == [PROFILE.digest]
    bench.view.index.trusted = lambda pod: False  # type: ignore[method-assign]
    bench.refresh()
    assert (only(bench).predictable, only(bench).reason) == (False, "index is being reloaded")


def test_why_a_replica_is_not_predictable_is_told(bench: Bench) -> None:
    bench.view.index.trusted = lambda pod: True  # type: ignore[method-assign]
    bench.view.leases[member(0).replica_uid].stale = True
    bench.refresh()
    assert only(bench).reason == "no fresh lease"
    inexact = replace_profile(exact=False, reason="images")
    bench.view.profiles[inexact.digest] = inexact
    bench.view.hear(lease(member(0), profile=inexact.digest), bench.clock())
    bench.view.hear(lease(member(1), profile="unknown"), bench.clock())
    bench.refresh()
    assert (only(bench).reason, only(bench, 1).reason) == ("images", "no profile yet")


def replace_profile(**changes: object) -> Profile:
    return msgspec.structs.replace(PROFILE, **changes)


def test_a_lease_of_an_earlier_pod_is_no_lease(bench: Bench) -> None:
    other = lease(member(0), pod_uid=member(5).pod_uid)
    bench.view.leases[member(0).replica_uid] = SeenLease(other, bench.clock())
    bench.refresh()
    assert only(bench).facts.standing is Standing.STALE


def test_reported_load_beyond_the_books_is_unknown_requests(bench: Bench) -> None:
    books = bench.view.books
    for request in (1, 2):
        books.pick(bench.clock(), request, only(bench).pod_uid, 1, prefill_s=1, context_tokens=10, streams=True)
    bench.view.hear(lease(member(0), waiting=3, running=2), bench.clock())
    bench.view.hear(lease(member(1), waiting=None, running=4), bench.clock())
    bench.refresh()
    assert (only(bench).facts.unknown_waiting, only(bench).facts.unknown_running) == (3, 0)
    assert (only(bench, 1).facts.unknown_waiting, only(bench, 1).facts.unknown_running) == (0, 4)
    for request in (1, 2):
        books.end(bench.clock(), request)
    bench.refresh()
    assert only(bench).facts.unknown_waiting == 3, "the same report is compared with the books of its time"


def test_a_new_epoch_forgives_and_forgets(bench: Bench) -> None:
    replica = only(bench)
    for _ in range(5):
        replica.failed(bench.clock())
    replica.history.add([1, 2], bench.clock())
    bench.view.hear(lease(member(0), epoch=2), bench.clock())
    bench.refresh()
    assert replica.facts.closed_until == 0.0
    assert len(replica.history) == 0


def test_drain_deadline_counts_from_when_the_lease_was_heard(bench: Bench) -> None:
    assert only(bench).drain_deadline is None
    bench.view.hear(lease(member(0), state="draining", remaining_ms=1500), bench.clock())
    bench.refresh()
    assert only(bench).drain_deadline == bench.clock() + 1.5


def test_a_new_engine_process_is_no_longer_what_the_old_one_was(bench: Bench) -> None:
    slow, fast = only(bench), only(bench, 1)
    usual_s = 4000 * slow.shape.a
    for _ in range(50):
        slow.speed.learn(slow.shape, 4000, 0, 4 * usual_s)
        fast.speed.learn(fast.shape, 4000, 0, usual_s)
    bench.refresh()
    assert slow.facts.cost.f > 1.5
    bench.view.hear(lease(member(0), epoch=2), bench.clock())
    bench.refresh()
    assert slow.speed.samples == 0
    assert slow.facts.cost.f == pytest.approx(1.0)


def test_shape_is_the_models_as_soon_as_its_profile_is_known(bench: Bench) -> None:
    profile = bench.view.profiles.pop(PROFILE.digest)
    small = replace_profile(parameters=10**8)
    bench.view.hear(lease(member(0), profile=small.digest), bench.clock())
    bench.refresh()
    unknown = only(bench).facts.cost.a
    bench.view.profiles |= {small.digest: small, PROFILE.digest: profile}
    bench.refresh()
    assert only(bench).facts.cost.a == pytest.approx(unknown / 80)


def test_a_booking_counts_once_and_ends_once(bench: Bench) -> None:
    booking = Booking(bench.service, 7, bench.clock(), True)
    assert bench.service.in_flight == 1
    booking.open(choice(only(bench)), bench.clock(), 1, 1000, [], 0)
    assert bench.view.books.own_open == 1
    booking.open(choice(only(bench, 1)), bench.clock(), 1, 1000, [], 0)
    assert bench.view.books.load(only(bench).pod_uid, bench.clock()).requests == 0
    booking.end(bench.clock())
    booking.end(bench.clock())
    assert (bench.service.in_flight, bench.view.books.own_open) == (0, 0)


def test_the_sample_travels_with_the_end_and_carries_what_was_really_cached(bench: Bench) -> None:
    booking = Booking(bench.service, 7, bench.clock(), True)
    booking.open(choice(only(bench)), bench.clock(), 1, 1000, [], 0)
    bench.clock.now += 0.5
    booking.first_event(bench.clock())
    bench.clock.now += 2
    booking.end(bench.clock(), USAGE, TextSize(4000))
    data = bench.view.books.outbox(bench.clock())
    assert data is not None
    (last,) = [e for e in decode_message(data).entries if e.op is BookOp.END]
    assert (last.uncached_tokens, last.cached_tokens, last.busy_us) == (600, 400, 500_000)
    speed = only(bench).speed
    bench.refresh()
    assert speed.samples == 1


def test_an_answer_that_did_not_stream_is_no_sample(bench: Bench) -> None:
    booking = Booking(bench.service, 7, bench.clock(), False)
    booking.open(choice(only(bench)), bench.clock(), 1, 1000, [], 0)
    bench.clock.now += 0.5
    booking.answered(bench.clock())
    booking.end(bench.clock(), USAGE, TextSize(4000))
    bench.refresh()
    assert only(bench).speed.samples == 0
    assert bench.service.mean_completion != 200.0, "its length still teaches"


def test_answers_teach_ratios_and_means(bench: Bench) -> None:
    for request in range(400):
        booking = Booking(bench.service, request, bench.clock(), True)
        booking.open(choice(only(bench), own_s=2.0), bench.clock(), 1, 1000, [], 0)
        booking.end(bench.clock(), Usage(2000, 100, None), TextSize(4000))
        bench.refresh()
    assert bench.service.ratios.ascii == pytest.approx(0.5, rel=0.05)
    assert bench.service.mean_completion == pytest.approx(100, rel=0.05)
    assert bench.service.mean.prefill_s == pytest.approx(2.0, rel=0.05)
    assert bench.service.mean.context_tokens == pytest.approx(2100, rel=0.05)


def test_a_flood_of_answers_teaches_a_bounded_part(bench: Bench) -> None:
    for request in range(10 * LESSONS_AT_ONCE):
        booking = Booking(bench.service, request, bench.clock(), True)
        booking.open(choice(only(bench)), bench.clock(), 1, 1000, [], 0)
        booking.end(bench.clock(), USAGE, TextSize(4000))
    assert len(bench.service._lessons) == LESSONS_AT_ONCE
    bench.refresh()
    assert bench.service._lessons == []


def test_an_engine_that_caches_less_than_its_events_say_is_distrusted(bench: Bench) -> None:
    bench.view.index.trusted = lambda pod: True  # type: ignore[method-assign]
    distrusted = []
    bench.view.index.distrust = lambda pod, now: distrusted.append(pod)  # type: ignore[method-assign]
    bench.refresh()
    for request in range(10):
        booking = Booking(bench.service, request, bench.clock(), True)
        booking.open(choice(only(bench)), bench.clock(), 1, 1000, [], 900)
        booking.end(bench.clock(), Usage(1000, 5, 0), TextSize(4000))
        bench.refresh()
    assert distrusted == [only(bench).pod_uid] * 2
    assert (only(bench).predictable, only(bench).truth.history_only) == (False, True)
    assert only(bench).reason == "engine reported less cached than its events said"
