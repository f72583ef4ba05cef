from hypothesis import given
from hypothesis import strategies as st
from roundhouse_sim.cache import Cleared, PrefixCache, Removed, Stored


def fill(cache: PrefixCache, keys: list[int]) -> None:
    """A sequence with these keys came and went."""
    matched = cache.match(keys)
    assert cache.admit(keys[:matched], len(keys) - matched)
    cache.commit(None, keys, matched, len(keys))
    cache.release(keys, 0)


def test_match_counts_leading_keys_only() -> None:
    cache = PrefixCache(8)
    fill(cache, [1, 2, 3])
    assert cache.match([1, 2, 9, 3]) == 2
    assert cache.match([2, 3]) == 2
    assert cache.match([9, 1]) == 0


def test_oldest_prefix_goes_first_and_from_its_tail() -> None:
    cache = PrefixCache(4)
    fill(cache, [1, 2])
    fill(cache, [3, 4])
    fill(cache, [5])
    assert cache.match([1, 2]) == 1
    assert cache.match([3, 4]) == 2


def test_reuse_makes_a_prefix_young_again() -> None:
    cache = PrefixCache(4)
    fill(cache, [1, 2])
    fill(cache, [3, 4])
    fill(cache, [1, 2])
    fill(cache, [5, 6])
    assert cache.match([1, 2]) == 2
    assert cache.match([3, 4]) == 0


def test_pinned_blocks_are_never_evicted() -> None:
    cache = PrefixCache(4)
    assert cache.admit([], 2)
    cache.commit(None, [1, 2], 0, 2)
    assert not cache.admit([], 3)
    assert cache.admit([], 2)
    assert cache.match([1, 2]) == 2


def test_admission_that_does_not_fit_changes_nothing() -> None:
    cache = PrefixCache(3, record=True)
    fill(cache, [1, 2])
    cache.take_changes()
    assert not cache.admit([1, 2], 2)
    assert (cache.used, cache.take_changes(), cache.match([1, 2])) == (0, [], 2)


def test_a_block_that_two_sequences_computed_is_kept_once() -> None:
    cache = PrefixCache(4, record=True)
    assert cache.admit([], 2)
    assert cache.admit([], 2)
    cache.commit("a", [1, 2], 0, 2)
    cache.commit("b", [1, 3], 0, 2)
    assert cache.used == 3
    assert cache.take_changes() == [Stored("a", 0, 2), Stored("b", 1, 2)]


def test_clear_is_refused_while_sequences_run() -> None:
    cache = PrefixCache(4, record=True)
    assert cache.admit([], 1)
    assert not cache.clear()
    cache.release([], 1)
    assert cache.clear()
    assert cache.take_changes() == [Cleared()]


chains = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=40)


@given(chains, st.integers(6, 12))
def test_changes_replayed_give_the_cache_and_parents_outlive_children(
    steps: list[tuple[int, int]], blocks: int
) -> None:
    cache = PrefixCache(blocks, record=True)
    present: set[int] = set()
    parents = {root * 100 + depth: root * 100 + depth - 1 for root in range(4) for depth in range(2, 7)}
    for root, length in steps:
        keys = [root * 100 + depth for depth in range(1, length + 1)]
        fill(cache, keys)
        for change in cache.take_changes():
            if isinstance(change, Stored):
                present |= set(keys[change.start : change.stop])
            elif isinstance(change, Removed):
                present -= set(change.keys)
        assert present == set(cache.idle)
        assert all(parents[key] in present for key in present if key in parents)
        assert len(present) <= blocks
        assert cache.used == 0
