"""The index benchmark measures what it says: chains of the shapes it names, and its goals as the issue has them."""

import numpy as np
import pytest

from benchmarks.index.__main__ import GOALS, goals
from benchmarks.index.copy import CHAIN, FILLED, filled


@pytest.mark.parametrize("replicas", [1, 8])
def test_the_index_holds_a_million_keys_and_chains_of_the_named_shapes(replicas: int) -> None:
    index, usual, worst = filled(replicas, np.random.default_rng(1))
    assert sum(index.key_count(pod) for pod in index.pods) >= FILLED
    depths = [sorted(index.match(chain).values()) for chain in usual[:4]]
    assert [found[-1] if found else 0 for found in depths] == [CHAIN, CHAIN // 2, CHAIN, 0]
    assert all(found[:-1] == [CHAIN // 8] * (replicas - 1) for found in depths[:3])
    assert len(set(index.match(worst[0]).values())) == replicas


def test_goals_are_judged_per_variant_and_in_their_own_direction() -> None:
    good = {name: {"x": bound} for name, (bound, _) in GOALS.items()}
    assert all(line.startswith("met") for line in goals(good))
    bad = {name: {"x": bound, "y": bound * (1.1 if upper else 0.9)} for name, (bound, upper) in GOALS.items()}
    assert [line.startswith("met") for line in goals(bad)] == [True, False] * len(GOALS)
