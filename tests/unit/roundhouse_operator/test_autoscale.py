"""How many replicas: golden decisions, and what holds for every load."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from roundhouse_operator.api.scaling import Scaling
from roundhouse_operator.autoscale import Bounds, Decision, History, Load, Report, Situation, decide

STORIES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "scaling_stories.yaml").read_text())
BOUNDS = Bounds(least=1, most=8, queue_depth=4, kv_usage=0.8, delay_s=60.0)


def _report(loads: Sequence[Sequence[Any] | None], held: int = 0) -> Report:
    return Report(tuple(Load() if load is None else Load(*load) for load in loads), held)


@pytest.mark.parametrize("story", STORIES, ids=[story["name"] for story in STORIES])
def test_story(story: dict[str, Any]) -> None:
    """A load told step by step, and what is decided after each."""
    bounds = Bounds.of(Scaling.model_validate(story["scaling"]))
    history, current, now = History(), story.get("replicas"), 1000.0
    for step in story["steps"]:
        loads = step.get("loads", [])
        for _ in range(step.get("for", 1)):
            now += 1.0
            history.add(now, _report(loads, step.get("held", 0)), bounds)
        situation = Situation(current, existing=step.get("existing", len(loads)), settled=step.get("settled", True))
        found = decide(history, bounds, situation, now)
        assert (found.replicas, found.reason) == tuple(step["then"]), (step, found)
        for part in step.get("says", []):
            assert part in found.message
        current = found.replicas


def test_defaults_are_those_of_the_reference() -> None:
    assert Bounds.of(Scaling(max=3)) == Bounds(1, 3, 4, 0.8, 300)


def test_a_gap_begins_the_history_anew() -> None:
    history = History()
    for now in range(100):
        history.add(float(now), _report([(0, 0, 0.0)]), BOUNDS)
    assert history.peak(99.0, 60.0) == 0
    history.add(200.0, _report([(0, 0, 0.0)]), BOUNDS)
    assert history.peak(200.0, 60.0) is None


def test_memory_of_a_quiet_history_does_not_grow() -> None:
    history = History()
    for now in range(10_000):
        history.add(float(now), _report([(0, 1, 0.1)]), BOUNDS)
    assert len(history._peaks) == 1


def test_a_bursty_history_keeps_the_largest_wish() -> None:
    history, history_of_all = History(), []
    for now in range(300):
        share = 0.1 + 0.9 * abs(math.sin(now * 7.3))
        history_of_all.append(math.ceil(round(share * 4 / 0.8, 6)))
        history.add(float(now), _report([(0, 1, share)] * 4), BOUNDS)
        if now >= 60:
            assert history.peak(float(now), 60.0) == max(history_of_all[now - 60 : now + 1])


LOADS = st.lists(
    st.one_of(st.none(), st.tuples(st.integers(0, 500), st.integers(0, 64), st.floats(0, 1))), min_size=0, max_size=10
)


@given(st.lists(st.tuples(LOADS, st.integers(0, 5), st.booleans(), st.integers(1, 90)), min_size=1, max_size=20))
@settings(max_examples=200, deadline=None)
def test_never_outside_the_bounds_and_never_down_by_more_than_one(
    steps: list[tuple[list[tuple[int, int, float] | None], int, bool, int]],
) -> None:
    history, current, now = History(), None, 0.0
    bounds = replace(BOUNDS, least=2, most=6)
    for loads, held, settled, seconds in steps:
        now += seconds
        history.add(now, _report(loads, held), bounds)
        found = decide(history, bounds, Situation(current, len(loads), settled), now)
        assert bounds.least <= found.replicas <= bounds.most
        if current is not None and found.replicas < current:
            assert found.replicas == current - 1
            assert settled
            assert all(load is not None for load in loads)
        assert bool(found.reason) == (found.replicas != current)
        current = found.replicas


def _served(demand: int, replicas: int, capacity: int, share: float) -> Report:
    """A service whose gateways spread ``demand`` requests evenly; each replica runs ``capacity`` at once."""
    each = [demand // replicas + (i < demand % replicas) for i in range(replicas)]
    loads = [Load(max(0, n - capacity), min(n, capacity), min(1.0, min(n, capacity) * share)) for n in each]
    return Report(tuple(loads))


@given(
    demand=st.integers(0, 400),
    before=st.integers(0, 400),
    capacity=st.integers(1, 64),
    full=st.floats(0.05, 1.0),
    queue_depth=st.integers(1, 20),
    kv_usage=st.integers(20, 100),
)
@settings(max_examples=300, deadline=None)
def test_a_load_that_does_not_change_comes_to_rest_and_never_flaps(
    demand: int, before: int, capacity: int, full: float, queue_depth: int, kv_usage: int
) -> None:
    bounds = Bounds(1, 12, queue_depth, kv_usage / 100, delay_s=10.0)
    history, current, now = History(), 1, 0.0
    changes: list[int] = []
    for tick in range(400):
        now += 2.0
        load = before if tick < 100 else demand
        history.add(now, _served(load, current, capacity, full / capacity), bounds)
        found = decide(history, bounds, Situation(current, current, settled=True), now)
        if tick >= 100 and found.replicas != current:
            changes.append(found.replicas - current)
        current = found.replicas
    ups, downs = [c for c in changes if c > 0], [c for c in changes if c < 0]
    turns = sum((a > 0) != (b > 0) for a, b in itertools.pairwise(changes))
    # What was learned under the former load may mislead once: then it goes the other way, and stays.
    assert turns <= 1, (changes, current)
    assert not (ups and downs) or before != demand
    last = history.report
    assert decide(history, bounds, Situation(current, current, settled=True), now) == Decision(current)
    waiting = sum(load.waiting or 0 for load in last.loads)
    assert current == bounds.most or waiting <= queue_depth * current
