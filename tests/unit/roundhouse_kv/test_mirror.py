"""The mirror against a model: a set of keys per slot."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundhouse_kv.kv_wire import Keys, as_keys
from roundhouse_kv.mirror import MIN_CAPACITY, SCALAR_KEYS, Change, Mirror


def change(slot: int, add: bool, keys: list[int]) -> Change:
    return Change(slot, add, as_keys(keys))


def depths(mirror: Mirror, keys: list[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for depth, mask in mirror.lookup(keys):
        for slot in range(mask.bit_length()):
            if mask >> slot & 1:
                assert slot not in found
                found[slot] = depth
    return found


def shown(mirror: Mirror, count: int) -> list[int]:
    slots = [mirror.take() for _ in range(count)]
    for slot in slots:
        mirror.show(slot)
    return slots


def model_depths(model: dict[int, set[int]], keys: list[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for slot, held in model.items():
        depth = next((at for at, key in enumerate(keys) if key not in held), len(keys))
        if depth:
            found[slot] = depth
    return found


def random_keys(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1, 2**64) for _ in range(count)]


@given(st.integers(0, 2**32), st.integers(1, 90), st.sampled_from([3, SCALAR_KEYS, 40]))
@settings(max_examples=40, deadline=None)
def test_it_equals_a_model_of_sets_over_random_rounds(seed: int, pods: int, size: int) -> None:
    rng = random.Random(seed)
    mirror = Mirror()
    model: dict[int, set[int]] = {slot: set() for slot in shown(mirror, pods)}
    universe = random_keys(rng, 60)
    for _ in range(12):
        changes = []
        for _ in range(rng.randrange(1, 4)):
            slot = rng.choice(list(model))
            keys = rng.sample(universe, rng.randrange(0, size))
            add = rng.random() < 0.6
            changes.append(change(slot, add, keys))
            model[slot] = model[slot] | set(keys) if add else model[slot] - set(keys)
        mirror.apply(changes)
        for key in universe:
            holders = {slot for slot, held in model.items() if key in held}
            assert set(depths(mirror, [key])) == holders
        if rng.random() < 0.3:
            gone = rng.choice(list(model))
            mirror.drop(gone)
            del model[gone]
            fresh = mirror.take()
            mirror.show(fresh)
            model[fresh] = set()


@given(st.integers(0, 2**32), st.integers(1, 140), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_lookup_gives_every_pod_the_length_of_its_prefix(seed: int, length: int, pods: int) -> None:
    rng = random.Random(seed)
    mirror = Mirror()
    chain = random_keys(rng, length)
    model: dict[int, set[int]] = {}
    for slot in shown(mirror, pods):
        held = chain[: rng.randrange(0, length + 1)]
        model[slot] = set(held)
        mirror.apply([change(slot, True, held)])
    assert depths(mirror, chain) == model_depths(model, chain)
    longer = chain + random_keys(rng, 20)
    assert depths(mirror, longer) == model_depths(model, longer)


def test_depths_come_in_rising_order_and_never_zero() -> None:
    mirror = Mirror()
    chain = random_keys(random.Random(1), 30)
    for depth, slot in zip((5, 30, 0, 17), shown(mirror, 4), strict=True):
        mirror.apply([change(slot, True, chain[:depth])])
    found = [depth for depth, _ in mirror.lookup(chain)]
    assert found == [5, 17, 30]


def test_no_keys_match_nothing() -> None:
    assert Mirror().lookup([]) == []
    assert Mirror().lookup([7]) == []


def test_the_last_change_of_a_key_wins_within_one_apply() -> None:
    mirror = Mirror()
    (slot,) = shown(mirror, 1)
    keys = random_keys(random.Random(2), 50)
    mirror.apply([change(slot, True, keys), change(slot, False, keys[:10]), change(slot, True, keys[:5])])
    assert [bool(mirror.lookup([key])) for key in keys] == [True] * 5 + [False] * 5 + [True] * 40


def test_the_same_key_twice_in_one_change_is_one_key() -> None:
    mirror = Mirror()
    (slot,) = shown(mirror, 1)
    mirror.apply([change(slot, True, [5] * 40)])
    mirror.apply([change(slot, False, [5] * 3)])
    assert mirror.lookup([5]) == []


def test_key_zero_is_kept_as_one_and_never_as_an_empty_place() -> None:
    mirror = Mirror()
    (slot,) = shown(mirror, 1)
    mirror.apply([change(slot, True, [0])])
    mirror.apply([change(slot, True, [0, *range(100, 140)])])
    assert depths(mirror, [1]) == {slot: 1}
    mirror.apply([change(slot, False, [0])])
    assert mirror.lookup([1]) == []


def test_keys_that_collide_lie_behind_each_other_and_wrap_around() -> None:
    mirror = Mirror()
    (slot,) = shown(mirror, 1)
    colliding = [mirror.capacity * n + mirror.capacity - 1 for n in range(1, 12)]
    for key in colliding:
        mirror.apply([change(slot, True, [key])])
    assert all(mirror.lookup([key]) for key in colliding)
    assert mirror.lookup([mirror.capacity * 50 - 1]) == []
    mirror.apply([change(slot, False, [mirror.capacity * 60 - 1])])
    bulk = Mirror()
    (slot,) = shown(bulk, 1)
    bulk.apply([change(slot, True, colliding * 2)])
    assert all(bulk.lookup([key]) for key in colliding)
    bulk.apply([change(slot, False, [*colliding[3:5], *(mirror.capacity * n - 1 for n in range(50, 70))])])
    assert [bool(bulk.lookup([key])) for key in colliding] == [True] * 3 + [False] * 2 + [True] * 6


def test_a_slot_shows_only_once_it_is_shown_and_no_more_when_dropped() -> None:
    mirror = Mirror()
    slot = mirror.take()
    mirror.apply([change(slot, True, [5])])
    assert mirror.lookup([5]) == []
    mirror.show(slot)
    assert depths(mirror, [5]) == {slot: 1}
    mirror.drop(slot)
    assert mirror.lookup([5]) == []


def test_a_slot_is_clean_when_it_is_given_out_again() -> None:
    mirror = Mirror()
    slots = shown(mirror, 64)
    mirror.apply([change(slot, True, [5, 6, 7]) for slot in slots])
    for slot in slots[10:13]:
        mirror.drop(slot)
    again = shown(mirror, 3)
    assert set(again) == set(slots[10:13])
    assert set(depths(mirror, [5, 6])) == set(slots) - set(again)


def test_more_than_64_pods_take_more_words() -> None:
    mirror = Mirror()
    slots = shown(mirror, 130)
    assert sorted(slots) == list(range(130))
    keys = random_keys(random.Random(3), 40)
    for slot in slots:
        mirror.apply([change(slot, True, keys[: 1 + slot % 40])])
    assert depths(mirror, keys) == {slot: 1 + slot % 40 for slot in slots}
    mirror.apply([change(slots[129], False, keys[:1])])
    assert slots[129] not in depths(mirror, keys)
    dropped = slots[70:75]
    for slot in dropped:
        mirror.drop(slot)
    while set(taken := [mirror.take()]) - set(dropped):
        mirror.show(taken[0])
    mirror.show(taken[0])
    assert taken[0] not in depths(mirror, keys)


def test_it_grows_while_keys_come_and_keeps_them_all() -> None:
    mirror = Mirror()
    (slot,) = shown(mirror, 1)
    keys = random_keys(random.Random(4), 30_000)
    for start in range(0, len(keys), 700):
        mirror.apply([change(slot, True, keys[start : start + 700])])
    assert mirror.lookup(keys) == [(len(keys), 1 << slot)]
    assert mirror.nbytes / len(keys) <= 34


def test_keys_that_come_and_go_do_not_make_it_grow() -> None:
    mirror = Mirror()
    (slot,) = shown(mirror, 1)
    rng = random.Random(5)
    for _ in range(100):
        keys = random_keys(rng, 500)
        mirror.apply([change(slot, True, keys)])
        mirror.apply([change(slot, False, keys)])
    assert mirror.capacity == MIN_CAPACITY


def test_a_table_made_for_the_expected_keys_does_not_grow() -> None:
    mirror = Mirror(50_000)
    (slot,) = shown(mirror, 1)
    before = mirror.capacity
    mirror.apply([change(slot, True, random_keys(random.Random(6), 50_000))])
    assert mirror.capacity == before


def test_a_rebuilt_table_is_adopted_when_nothing_was_written_since() -> None:
    mirror = Mirror()
    (slot,) = shown(mirror, 1)
    keys = random_keys(random.Random(7), 200)
    mirror.apply([change(slot, True, keys)])
    assert mirror.wanted_capacity(100) is None
    capacity = mirror.wanted_capacity(100_000)
    assert capacity is not None
    rebuilt = mirror.rebuilt(capacity)
    assert mirror.adopt(rebuilt)
    assert mirror.capacity == capacity
    assert mirror.lookup(keys) == [(200, 1 << slot)]
    assert not mirror.adopt(rebuilt)


def test_a_rebuilt_table_is_refused_when_something_was_written_since() -> None:
    mirror = Mirror()
    (slot,) = shown(mirror, 1)
    rebuilt = mirror.rebuilt(MIN_CAPACITY * 2)
    mirror.apply([change(slot, True, [9])])
    assert not mirror.adopt(rebuilt)
    assert mirror.lookup([9])


@pytest.mark.parametrize("empty", [np.array([], np.uint64), as_keys([])])
def test_an_empty_change_is_none(empty: Keys) -> None:
    mirror = Mirror()
    mirror.apply([Change(mirror.take(), True, empty)])
    mirror.apply([])
    assert mirror.lookup([1]) == []
