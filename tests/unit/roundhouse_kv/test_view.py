from uuid import UUID

import pytest
from roundhouse_kv.books import Books
from roundhouse_kv.index import ServiceIndex
from roundhouse_kv.kv_wire import KvSnapshot, as_keys
from roundhouse_kv.names import Installation
from roundhouse_kv.records import Lease, Member, Profile, ServiceEntry
from roundhouse_kv.view import STALE_AFTER_S, ServiceView, pod_uuid

POD, OTHER = UUID(int=1), UUID(int=2)


def member(replica: str, pod: UUID | str) -> Member:
    return Member(
        name=replica, replica_uid=replica, pod_uid=str(pod), address="h", port=1, agent_port=2, engine="sim",
        engine_model="m",
    )  # fmt: skip


def entry(*members: Member) -> ServiceEntry:
    return ServiceEntry(namespace="ns", name="x", uid="u", served_names=("x",), members=members)


def lease(replica: str = "a", pod: UUID | str = POD, *, epoch: int = 1, profile: str = "") -> Lease:
    return Lease(
        replica=replica, replica_uid=replica, pod_uid=str(pod), epoch=epoch, source=1, state="ready", profile=profile
    )


@pytest.fixture
def view() -> ServiceView:
    return ServiceView(
        Installation("i").service("ns", "x"), entry(member("a", POD), member("b", OTHER)), ServiceIndex(), Books(1)
    )


def test_leases_of_members_are_taken(view: ServiceView) -> None:
    assert view.hear(lease(), 5)
    seen = view.leases["a"]
    assert (seen.lease, seen.heard_at, seen.stale) == (lease(), 5, False)
    assert view.index.trusted(POD)


def test_leases_of_strangers_other_pods_and_dead_engines_are_not(view: ServiceView) -> None:
    assert not view.hear(lease("z"), 1)
    assert not view.hear(lease("a", OTHER), 1)
    assert view.hear(lease(epoch=5), 1)
    assert not view.hear(lease(epoch=4), 2)
    assert view.leases["a"].lease.epoch == 5
    assert view.leases["a"].heard_at == 1


def test_a_lease_of_a_newer_epoch_voids_bookings_and_keys(view: ServiceView) -> None:
    view.hear(lease(), 0)
    view.index.load(KvSnapshot(POD, 1, 1, 1, 0, 0, as_keys([7])), 0)
    view.books.pick(0, 1, POD, 1, prefill_s=1, context_tokens=1, streams=True)
    view.hear(lease(epoch=2), 1)
    assert view.index.match([7]) == {}
    assert view.books.own_open == 0


def test_a_lease_is_stale_when_it_was_not_heard_for_a_while(view: ServiceView) -> None:
    view.hear(lease(), 10)
    view.judge(10 + STALE_AFTER_S)
    assert not view.leases["a"].stale
    view.judge(10 + STALE_AFTER_S + 0.1)
    assert view.leases["a"].stale
    view.hear(lease(), 20)
    view.judge(20)
    assert not view.leases["a"].stale


def test_who_leaves_the_catalogue_is_forgotten(view: ServiceView) -> None:
    view.hear(lease(), 0)
    view.hear(lease("b", OTHER), 0)
    view.index.load(KvSnapshot(OTHER, 1, 1, 1, 0, 0, as_keys([7])), 0)
    view.books.pick(0, 1, OTHER, 1, prefill_s=1, context_tokens=1, streams=True)
    view.change(entry(member("a", POD)), 1)
    assert list(view.leases) == ["a"]
    assert view.index.match([7]) == {}
    assert view.books.own_open == 0


def test_a_replica_with_another_pod_starts_without_a_lease(view: ServiceView) -> None:
    view.hear(lease(), 0)
    view.change(entry(member("a", UUID(int=3))), 1)
    assert view.leases == {}


def test_a_pod_uid_that_is_no_uuid_has_a_lease_but_no_index(view: ServiceView) -> None:
    odd = member("odd", "pod-1")
    view.change(entry(odd), 0)
    assert view.pods == set()
    assert pod_uuid(odd) is None
    assert view.hear(lease("odd", "pod-1"), 0)
    assert list(view.index.pods) == []


def test_profiles_are_wanted_once_and_kept_while_a_lease_names_them(view: ServiceView) -> None:
    view.hear(lease(profile="d1"), 0)
    view.hear(lease("b", OTHER, profile="d2"), 0)
    assert view.missing_profiles() == {"d1", "d2"}
    view.profiles["d1"] = Profile(text=None)
    view.unreadable_profiles.add("d2")
    assert view.missing_profiles() == set()
    view.hear(lease(profile=""), 1)
    view.hear(lease("b", OTHER, profile="d3"), 1)
    view.forget_profiles()
    assert view.profiles == {}
    assert view.missing_profiles() == {"d3"}
    assert view.unreadable_profiles == set()
