"""The rules of contracts §6: epoch, source and sequence, and what the lease tells."""

import random
from functools import reduce
from operator import xor
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundhouse_kv.index import LOAD_SLICE_KEYS, ServiceIndex
from roundhouse_kv.kv_wire import KvBatch, KvSnapshot, Op, Section, as_keys
from roundhouse_kv.records import Lease

POD = UUID(int=1)
OTHER = UUID(int=2)
CHAIN = list(range(101, 141))


def batch(
    seq: int,
    add: list[int] | None = None,
    remove: list[int] | None = None,
    *,
    pod: UUID = POD,
    epoch: int = 1,
    source: int = 7,
    clear: bool = False,
    tier: int = 0,
) -> KvBatch:
    sections = []
    if add:
        sections.append(Section(Op.ADD, as_keys(add), tier))
    if remove:
        sections.append(Section(Op.REMOVE, as_keys(remove), tier))
    return KvBatch(pod, epoch, source, seq, 0, tuple(sections), clear)


def snapshot(seq: int, keys: list[int], *, pod: UUID = POD, epoch: int = 1, source: int = 7) -> KvSnapshot:
    return KvSnapshot(pod, epoch, source, seq, 0, 0, as_keys(keys))


def lease(seq: int, keys: list[int], *, pod: UUID | str = POD, epoch: int = 1, source: int = 7) -> Lease:
    return Lease(
        replica="r", replica_uid="r", pod_uid=str(pod), epoch=epoch, source=source, state="ready",
        kv_seq=seq, key_count=len(keys), key_xor=reduce(xor, keys, 0),
    )  # fmt: skip


def held(index: ServiceIndex, pod: UUID = POD) -> int:
    return index.match(CHAIN).get(pod, 0)


@pytest.fixture
def index() -> ServiceIndex:
    """One pod, epoch 1, source 7, seq 2, holding the first four keys."""
    index = ServiceIndex()
    index.apply(batch(1, CHAIN[:3]), 0)
    index.apply(batch(2, CHAIN[3:4]), 0)
    return index


def test_batches_in_order_are_applied(index: ServiceIndex) -> None:
    assert index.match(CHAIN) == {POD: 4}
    assert index.trusted(POD)
    assert index.key_count(POD) == 4
    assert index.epoch(POD) == 1
    assert list(index.pods) == [POD]


def test_removed_keys_are_gone(index: ServiceIndex) -> None:
    index.apply(batch(3, None, CHAIN[2:4]), 0)
    assert held(index) == 2
    assert index.key_count(POD) == 2


def test_keys_of_other_tiers_do_not_count(index: ServiceIndex) -> None:
    index.apply(batch(3, CHAIN[4:8], tier=1), 0)
    assert held(index) == 4
    assert index.key_count(POD) == 4
    index.apply(batch(4, CHAIN[4:5]), 0)
    assert held(index) == 5


def test_an_unknown_pod_holds_nothing_and_is_not_trusted(index: ServiceIndex) -> None:
    assert held(index, OTHER) == 0
    assert not index.trusted(OTHER)
    assert index.key_count(OTHER) == 0
    assert index.epoch(OTHER) == 0


def test_pods_are_told_apart(index: ServiceIndex) -> None:
    index.apply_all([batch(1, CHAIN[:9], pod=OTHER), batch(3, CHAIN[4:6])], 0)
    assert index.match(CHAIN) == {POD: 6, OTHER: 9}


def test_duplicates_are_skipped(index: ServiceIndex) -> None:
    index.apply(batch(3, None, CHAIN[:4]), 0)
    index.apply(batch(2, CHAIN[3:4]), 0)
    index.apply(batch(3, None, CHAIN[:4]), 0)
    assert index.key_count(POD) == 0
    assert index.trusted(POD)


def test_a_gap_makes_the_pod_suspect_and_stops_it(index: ServiceIndex) -> None:
    index.apply(batch(4, CHAIN[4:9]), 1)
    assert not index.trusted(POD)
    assert index.suspects(1) == {POD}
    assert held(index) == 4


def test_the_missing_batch_ends_the_gap(index: ServiceIndex) -> None:
    index.apply(batch(4, CHAIN[5:6]), 1)
    index.apply_all([batch(3, CHAIN[4:5]), batch(4, CHAIN[5:6])], 1)
    assert held(index) == 6
    assert index.trusted(POD)
    assert not index.suspects(1)


def test_a_snapshot_ends_the_gap_and_the_log_goes_on_behind_it(index: ServiceIndex) -> None:
    index.apply(batch(5, CHAIN[6:7]), 1)
    index.load(snapshot(4, CHAIN[:6]), 1)
    assert not index.trusted(POD)  # 5 is known to exist
    index.apply_all([batch(3, CHAIN[:1]), batch(4), batch(5, CHAIN[6:7])], 1)
    assert held(index) == 7
    assert index.trusted(POD)


def test_an_old_snapshot_does_not_turn_time_back(index: ServiceIndex) -> None:
    index.load(snapshot(1, CHAIN[:3]), 0)
    assert held(index) == 4
    index.apply(batch(3, CHAIN[4:5]), 0)
    assert held(index) == 5


def test_a_first_batch_that_is_not_the_first_needs_a_snapshot() -> None:
    index = ServiceIndex()
    index.apply(batch(9, CHAIN[:2]), 0)
    assert index.suspects(0) == {POD}
    assert held(index) == 0
    index.load(snapshot(9, CHAIN[:5]), 0)
    assert held(index) == 5
    assert index.trusted(POD)


def test_a_snapshot_alone_starts_a_pod() -> None:
    index = ServiceIndex()
    index.load(snapshot(12, CHAIN[:5]), 0)
    index.apply(batch(13, CHAIN[5:6]), 0)
    assert held(index) == 6
    assert index.trusted(POD)


def test_an_empty_snapshot_empties_the_pod(index: ServiceIndex) -> None:
    index.load(snapshot(5, []), 0)
    assert held(index) == 0
    assert index.trusted(POD)


def test_a_lone_clear_empties_the_pod(index: ServiceIndex) -> None:
    index.apply(batch(3, clear=True), 0)
    assert index.key_count(POD) == 0
    assert held(index) == 0
    index.apply(batch(4, CHAIN[:1]), 0)
    assert held(index) == 1


def test_a_clear_applies_before_its_sections_and_after_what_came_before(index: ServiceIndex) -> None:
    index.apply_all([batch(3, CHAIN[4:9]), batch(4, CHAIN[:2], clear=True), batch(5, CHAIN[2:3])], 0)
    assert held(index) == 3
    assert index.key_count(POD) == 3


def test_a_clear_needs_no_predecessor(index: ServiceIndex) -> None:
    index.apply(batch(9, CHAIN[:1]), 0)
    index.apply(batch(12, CHAIN[:2], clear=True), 0)
    assert held(index) == 2
    assert index.trusted(POD)


def test_an_engine_restart_in_place_drops_the_keys(index: ServiceIndex) -> None:
    index.apply(batch(3, CHAIN[:1], epoch=2), 0)
    assert held(index) == 1
    assert index.epoch(POD) == 2
    assert index.trusted(POD)


def test_late_frames_of_a_dead_epoch_are_ignored(index: ServiceIndex) -> None:
    index.apply(batch(3, CHAIN[:1], epoch=2), 0)
    index.apply(batch(4, CHAIN[1:9], epoch=1), 0)
    index.load(snapshot(9, CHAIN[:9], epoch=1), 0)
    index.heard(lease(50, CHAIN[:9], epoch=1), 0)
    assert held(index) == 1
    assert index.trusted(POD)


def test_a_lease_that_tells_a_newer_epoch_drops_the_keys(index: ServiceIndex) -> None:
    index.heard(lease(2, [], epoch=2), 0)
    assert held(index) == 0
    assert index.epoch(POD) == 2


def test_a_snapshot_of_a_newer_epoch_replaces_the_keys(index: ServiceIndex) -> None:
    index.load(snapshot(1, CHAIN[:7], epoch=2, source=8), 0)
    assert held(index) == 7
    assert index.epoch(POD) == 2


def test_a_new_source_keeps_the_old_ones_keys_until_its_snapshot_arrives(index: ServiceIndex) -> None:
    index.apply(batch(1, CHAIN[:1], source=8), 0)
    assert held(index) == 4
    assert index.suspects(0) == {POD}
    index.load(snapshot(1, CHAIN[:2], source=8), 0)
    assert held(index) == 2
    assert index.trusted(POD)


def test_the_old_sources_snapshot_does_not_end_the_wait_for_the_new_one(index: ServiceIndex) -> None:
    index.apply(batch(1, CHAIN[:1], source=8), 0)
    index.load(snapshot(3, CHAIN[:5]), 0)
    assert held(index) == 5
    assert index.suspects(0) == {POD}


def test_batches_of_a_replaced_source_are_ignored(index: ServiceIndex) -> None:
    index.load(snapshot(1, CHAIN[:2], source=8), 0)
    index.apply(batch(3, CHAIN[4:9], source=7), 0)
    index.load(snapshot(30, CHAIN[:9], source=7), 0)
    assert held(index) == 2
    assert index.trusted(POD)


def test_a_replaced_source_speaks_again_when_the_lease_says_so(index: ServiceIndex) -> None:
    index.load(snapshot(1, CHAIN[:2], source=8), 0)
    index.heard(lease(30, CHAIN[:9], source=7), 0)
    assert held(index) == 2
    assert not index.trusted(POD)
    index.load(snapshot(30, CHAIN[:9], source=7), 0)
    assert held(index) == 9
    assert index.trusted(POD)


def test_a_source_that_was_waited_for_is_history_once_another_comes(index: ServiceIndex) -> None:
    index.apply(batch(1, CHAIN[:1], source=8), 0)
    index.apply(batch(2, clear=True, source=9), 0)
    index.apply(batch(1, CHAIN[:1], source=8), 0)
    assert held(index) == 0
    index.apply(batch(3, CHAIN[:3], source=9), 0)
    assert held(index) == 3
    assert index.trusted(POD)


def test_a_new_source_that_starts_with_a_clear_needs_no_snapshot(index: ServiceIndex) -> None:
    index.apply(batch(1, CHAIN[:2], source=8, clear=True), 0)
    assert held(index) == 2
    assert index.trusted(POD)


def test_a_new_source_of_a_pod_without_keys_starts_at_once(index: ServiceIndex) -> None:
    index.apply(batch(3, clear=True), 0)
    index.apply(batch(1, CHAIN[:2], source=8), 0)
    assert held(index) == 2
    assert index.trusted(POD)


def test_agent_and_engine_restart_together(index: ServiceIndex) -> None:
    index.apply(batch(1, CHAIN[:2], epoch=2, source=8), 0)
    assert held(index) == 2
    assert index.trusted(POD)


def test_the_lease_says_which_source_speaks_now(index: ServiceIndex) -> None:
    """A late batch of a source nobody knew must not leave the pod waiting for that source for ever."""
    index.apply(batch(5, CHAIN[:1], source=3), 0)
    assert not index.trusted(POD)
    index.heard(lease(2, CHAIN[:4]), 0)
    assert index.trusted(POD)


def test_a_lease_of_a_new_source_with_keys_asks_for_its_snapshot(index: ServiceIndex) -> None:
    index.heard(lease(0, [1, 2], source=8), 0)
    assert index.suspects(0) == {POD}


def test_a_lease_of_a_new_source_without_keys_waits_while_the_pod_has_some(index: ServiceIndex) -> None:
    index.heard(lease(0, [], source=8), 0)
    assert held(index) == 4
    assert index.suspects(0) == {POD}


def test_a_lease_of_a_new_source_without_keys_is_taken_when_the_pod_has_none(index: ServiceIndex) -> None:
    index.apply(batch(3, clear=True), 0)
    index.heard(lease(0, [], source=8), 0)
    assert index.trusted(POD)
    index.apply(batch(1, CHAIN[:2], source=8), 0)
    assert held(index) == 2


def test_the_first_lease_of_a_pod_with_keys_asks_for_its_snapshot() -> None:
    index = ServiceIndex()
    index.heard(lease(5, CHAIN[:4]), 0)
    assert index.suspects(0) == {POD}
    index.load(snapshot(5, CHAIN[:4]), 0)
    assert index.trusted(POD)


def test_the_first_lease_of_a_pod_without_keys_is_enough_to_trust_it() -> None:
    index = ServiceIndex()
    index.heard(lease(0, []), 0)
    assert index.trusted(POD)
    index.apply(batch(1, CHAIN[:1]), 0)
    assert held(index) == 1


def test_a_snapshot_at_seq_zero_satisfies_a_lease_at_seq_zero() -> None:
    index = ServiceIndex()
    index.heard(lease(0, CHAIN[:4]), 0)
    assert index.suspects(0) == {POD}
    index.load(snapshot(0, CHAIN[:4]), 0)
    assert index.trusted(POD)
    assert held(index) == 4


def test_a_lease_with_a_pod_uid_that_is_none_is_ignored(index: ServiceIndex) -> None:
    index.heard(lease(9, [], pod="not-a-uuid"), 0)
    assert list(index.pods) == [POD]


def test_a_kv_seq_not_reached_within_two_seconds_makes_the_pod_suspect(index: ServiceIndex) -> None:
    index.heard(lease(3, CHAIN[:5]), 10)
    assert index.suspects(11.9) == set()
    assert index.trusted(POD)
    assert index.suspects(12) == {POD}
    assert not index.trusted(POD)


def test_newer_leases_do_not_put_off_the_deadline(index: ServiceIndex) -> None:
    index.heard(lease(3, CHAIN[:5]), 10)
    index.heard(lease(4, CHAIN[:6]), 11.5)
    assert index.suspects(12) == {POD}


def test_a_kv_seq_reached_in_time_is_fine(index: ServiceIndex) -> None:
    index.heard(lease(3, CHAIN[:5]), 10)
    index.apply(batch(3, CHAIN[4:5]), 11)
    assert index.suspects(13) == set()


@pytest.mark.parametrize("keys", [CHAIN[:3], [*CHAIN[:3], 999]])
def test_another_number_or_xor_of_keys_at_the_same_seq_makes_the_pod_suspect(
    index: ServiceIndex, keys: list[int]
) -> None:
    index.heard(lease(2, keys), 1)
    assert index.suspects(1) == {POD}


def test_a_doubted_pod_takes_any_snapshot_and_catches_up_from_it(index: ServiceIndex) -> None:
    index.heard(lease(2, CHAIN[:2]), 1)
    index.load(snapshot(1, CHAIN[:1]), 1)
    assert held(index) == 1
    assert not index.trusted(POD)
    index.apply(batch(2, CHAIN[1:2]), 1)
    assert index.trusted(POD)
    assert held(index) == 2


def test_a_lease_that_lags_is_compared_with_what_was_known_then(index: ServiceIndex) -> None:
    index.apply(batch(3, CHAIN[4:6]), 0)
    index.heard(lease(2, CHAIN[:4]), 0)
    assert index.trusted(POD)
    index.heard(lease(2, CHAIN[:5]), 0)
    assert not index.trusted(POD)


def test_distrust_asks_for_a_reload(index: ServiceIndex) -> None:
    index.distrust(OTHER, 5)
    index.distrust(POD, 5)
    assert index.suspects(5) == {POD}
    index.load(snapshot(2, CHAIN[:3]), 5)
    assert held(index) == 3
    assert index.trusted(POD)


def test_a_suspect_that_was_looked_after_in_vain_waits_longer_each_time(index: ServiceIndex) -> None:
    index.apply(batch(4), 0)
    waits = []
    now = 0.0
    for _ in range(5):
        index.postpone([POD, OTHER], now)
        start = now
        while not index.suspects(now):
            now += 0.5
        waits.append(now - start)
    assert waits == [1, 2, 4, 8, 8]
    index.apply(batch(3), now)
    index.apply(batch(4), now)
    index.heard(lease(4, CHAIN[:4]), now)
    index.apply(batch(6), now)
    index.postpone([POD], now)
    assert index.suspects(now + 1) == {POD}


def test_a_pod_that_is_well_is_not_put_off(index: ServiceIndex) -> None:
    index.postpone([POD], 0)
    index.apply(batch(9), 0)
    assert index.suspects(0) == {POD}


def test_a_dropped_pod_is_forgotten(index: ServiceIndex) -> None:
    index.drop(POD)
    index.drop(POD)
    assert index.match(CHAIN) == {}
    assert index.epoch(POD) == 0
    index.apply(batch(1, CHAIN[:1]), 0)
    assert held(index) == 1


def test_a_big_snapshot_comes_in_slices_and_shows_all_at_once(index: ServiceIndex) -> None:
    many = [*CHAIN[:9], *range(10_000, 10_000 + 3 * LOAD_SLICE_KEYS)]
    slices = index.load_slices(snapshot(3, many), 0)
    for _ in range(3):
        next(slices)
        assert held(index) == 4
    with pytest.raises(StopIteration):
        next(slices)
    assert held(index) == 9
    assert index.key_count(POD) == len(many)


def test_a_load_overtaken_by_a_newer_epoch_is_given_up(index: ServiceIndex) -> None:
    slices = index.load_slices(snapshot(3, [*CHAIN[:9], *range(10_000, 10_000 + LOAD_SLICE_KEYS)]), 0)
    next(slices)
    index.apply(batch(3, CHAIN[:2], epoch=2), 0)
    assert list(slices) == []
    assert held(index) == 2


def test_a_load_of_a_pod_dropped_meanwhile_is_given_up(index: ServiceIndex) -> None:
    slices = index.load_slices(snapshot(3, list(range(1, 2 * LOAD_SLICE_KEYS))), 0)
    next(slices)
    index.drop(POD)
    assert list(slices) == []
    assert index.match([1]) == {}


def test_an_abandoned_load_leaves_nothing_behind(index: ServiceIndex) -> None:
    slices = index.load_slices(snapshot(3, list(range(1, 2 * LOAD_SLICE_KEYS))), 0)
    next(slices)
    slices.close()  # type: ignore[attr-defined]
    assert held(index) == 4
    assert index.match([1]) == {}


def test_many_restarts_do_not_use_up_the_slots() -> None:
    index = ServiceIndex()
    for epoch in range(1, 300):
        index.apply(batch(epoch, CHAIN[: 1 + epoch % 9], epoch=epoch), 0)
        assert held(index) == 1 + epoch % 9
    assert index.mirror.nbytes <= ServiceIndex().mirror.nbytes


@given(st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_whatever_is_lost_doubled_or_late_a_snapshot_and_a_replay_bring_the_truth(seed: int) -> None:
    """An agent and its engine restart at random; the reader gets a mutilated log, then heals as the feed does."""
    rng = random.Random(seed)
    index = ServiceIndex()
    log: list[KvBatch] = []
    truth: set[int] = set()
    epoch, source, seq = 1, 7, 0
    saved = snapshot(0, [])
    saved_at = 0
    for step in range(40):
        event = rng.random()
        if event < 0.06:
            epoch, truth = epoch + 1, set()
        elif event < 0.12:
            source, seq = rng.getrandbits(60) + 100, 0
            saved, saved_at = snapshot(0, sorted(truth), epoch=epoch, source=source), len(log)
        add = rng.sample(CHAIN, rng.randrange(0, 6))
        remove = [key for key in rng.sample(CHAIN, rng.randrange(0, 4)) if key in truth]
        add = [key for key in add if key not in truth]
        clear = rng.random() < 0.05
        if clear:
            truth, remove = set(), []
        truth = truth - set(remove) | set(add)
        seq += 1
        log.append(batch(seq, add, remove, epoch=epoch, source=source, clear=clear))
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            index.apply(rng.choice(log[-3:]) if rng.random() < 0.1 else log[-1], step)
        if rng.random() < 0.2:
            saved, saved_at = snapshot(seq, sorted(truth), epoch=epoch, source=source), len(log)
        if rng.random() < 0.3:
            index.heard(lease(seq, sorted(truth), epoch=epoch, source=source), step)
    final = lease(seq, sorted(truth), epoch=epoch, source=source)
    index.heard(final, 100)
    if index.suspects(110):
        saved, saved_at = (saved, saved_at) if rng.random() < 0.5 else (
            snapshot(seq, sorted(truth), epoch=epoch, source=source), len(log)
        )  # fmt: skip
        index.load(saved, 110)
        index.apply_all(log[saved_at:], 110)
    index.heard(final, 111)
    if index.suspects(120):  # the snapshot was too old for what was wrong: the agent's next one is not
        index.load(snapshot(seq, sorted(truth), epoch=epoch, source=source), 120)
    assert index.trusted(POD)
    assert {key for key in CHAIN if index.match([key])} == truth
    assert index.key_count(POD) == len(truth)


def test_sixty_four_pods_met_by_lease_and_loaded_by_snapshot_fit_into_one_word_of_mask() -> None:
    index = ServiceIndex()
    pods = [UUID(int=number + 1) for number in range(64)]
    for pod in pods:
        index.heard(lease(1, CHAIN, pod=pod), 0)
    before = index.mirror.nbytes
    for pod in pods:
        index.load(snapshot(1, CHAIN, pod=pod), 0)
    assert index.match(CHAIN) == dict.fromkeys(pods, len(CHAIN))
    assert index.mirror.nbytes == before
