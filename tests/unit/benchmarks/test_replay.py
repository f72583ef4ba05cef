"""The live replay's prompts and judgement."""

from math import inf

import pytest

from benchmarks.harness import BenchmarkError
from benchmarks.replay.__main__ import Results, figures_of, goals
from benchmarks.replay.client import Outcome
from benchmarks.replay.judgement import Hits, back_after_s
from benchmarks.replay.slice import cut, prompt_text
from benchmarks.routing.traces import Request


def request(blocks: tuple[int, ...], tokens: int, at: float = 0.0) -> Request:
    return Request(at, tokens, 10, blocks)


def test_equal_blocks_are_equal_text_and_the_rest_is_a_requests_own() -> None:
    one, other = prompt_text(request((1, 2), 1100), 1), prompt_text(request((1, 2), 1100), 2)
    assert len(one) == 1100
    assert one[:1024] == other[:1024]
    assert one[1024:] != other[1024:]
    assert prompt_text(request((1, 3), 1024), 3)[:512] == one[:512]
    assert prompt_text(request((1, 3), 1024), 3)[512:] != one[512:1024]


def test_a_slice_counts_from_its_own_start() -> None:
    cut_out = cut([request((), 1, at) for at in (9.0, 10.0, 14.9, 15.0)], 10.0, 5.0)
    assert [round(each.at, 1) for each in cut_out] == [0.0, 4.9]


def hits(cached_from: float, cached: int) -> list[Hits]:
    return [Hits(float(at), cached if at >= cached_from else 0, 100) for at in range(100)]


@pytest.mark.parametrize(("cached_from", "back"), [(0, 0.0), (45, 0.0), (58, 6.0), (200, inf)])
def test_hits_are_back_when_a_window_has_as_many_as_the_simulation(cached_from: int, back: float) -> None:
    """A window of 20 s may lack a seventh of the simulation's 22 of 100: three points."""
    assert back_after_s(hits(cached_from, 22), hits(0, 22), 50.0) == pytest.approx(back, abs=1.0)


def results(ours: list[Outcome], idle: float = 0.5) -> Results:
    others = [Outcome(each.sent_at, "e", 4.0, 100, 5) for each in ours]
    return Results(ours, others, [Hits(each.sent_at, 20, 100) for each in ours], 50.0, "killed", idle)


def outcome(at: float, target: str = "left", error: str = "") -> Outcome:
    return Outcome(at, target, 1.0, 100, 20, error)


def test_only_what_the_killed_gateway_had_may_fail() -> None:
    ours = [outcome(float(at)) for at in range(100)]
    ours[49] = outcome(49.0, "killed", "reset")
    met = figures_of(results(ours))
    assert met["failed_requests"] == {"roundhouse": 0, "killed_gateways_own": 1, "round_robin": 0}
    assert all(line.startswith("met") for line in goals(met))
    for lost in (outcome(51.0, "killed", "reset"), outcome(49.0, "left", "status 503")):
        ours[49] = lost
        assert any("MISSED failed" in line for line in goals(figures_of(results(ours))))


def test_a_run_on_a_busy_machine_is_void() -> None:
    ours = [outcome(float(at)) for at in range(100)]
    with pytest.raises(BenchmarkError, match="void: the machine was only 10% idle"):
        goals(figures_of(results(ours, idle=0.1)))
