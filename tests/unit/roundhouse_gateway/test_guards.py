"""Truth check, breaker, retry budget and history."""

import logging
from collections import defaultdict

import pytest
from roundhouse_gateway.breaker import Breaker
from roundhouse_gateway.history import TTL_S, History
from roundhouse_gateway.logs import UnreadableCounter
from roundhouse_gateway.retry_budget import RESERVE, RetryBudget
from roundhouse_gateway.truth import SECOND_CHANCE_S, TruthCheck, Verdict


def judge(check: TruthCheck, misses: int, hits: int = 0, now: float = 0.0) -> list[Verdict]:
    verdicts = [check.judge(1000, 1000, 100, now) for _ in range(hits)]
    return verdicts + [check.judge(1000, 500, 100, now) for _ in range(misses)]


def test_five_misses_in_twenty_reload_the_snapshot() -> None:
    assert judge(TruthCheck(), misses=4) == [Verdict.FINE] * 4
    assert judge(TruthCheck(), misses=5, hits=10)[-1] is Verdict.RELOAD


def test_misses_that_are_spread_thin_are_fine() -> None:
    check = TruthCheck()
    for _ in range(10):
        assert judge(check, misses=1, hits=5) == [Verdict.FINE] * 6


def test_a_replica_that_caches_more_than_predicted_is_no_liar() -> None:
    check = TruthCheck()
    assert {check.judge(100, 5000, 50, 0.0) for _ in range(50)} == {Verdict.FINE}


def test_a_miss_within_the_tolerance_is_none() -> None:
    check = TruthCheck()
    assert {check.judge(1000, 900, 100, 0.0) for _ in range(50)} == {Verdict.FINE}


def test_second_time_within_five_minutes_is_history_only() -> None:
    check = TruthCheck()
    assert judge(check, misses=5)[-1] is Verdict.RELOAD
    assert judge(check, misses=5, now=SECOND_CHANCE_S - 1)[-1] is Verdict.HISTORY_ONLY
    assert check.history_only
    assert judge(check, misses=20, now=SECOND_CHANCE_S)[-1] is Verdict.FINE


def test_second_time_after_five_minutes_reloads_again() -> None:
    check = TruthCheck()
    judge(check, misses=5)
    assert judge(check, misses=5, now=SECOND_CHANCE_S)[-1] is Verdict.RELOAD
    assert not check.history_only


def test_predictions_of_nothing_teach_nothing() -> None:
    check = TruthCheck()
    assert {check.judge(0, 0, -1, 0.0) for _ in range(50)} == {Verdict.FINE}


def test_breaker_opens_after_three_failures_in_a_row_and_doubles_its_pause() -> None:
    breaker = Breaker()
    breaker.failed(10.0)
    breaker.failed(10.0)
    assert breaker.closed_until == 0.0
    pauses = []
    for _ in range(8):
        breaker.failed(10.0)
        pauses.append(breaker.closed_until - 10.0)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_breaker_lets_one_probe_through_at_a_time() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(10.0)
    breaker.sent(11.0)
    assert breaker.closed_until == 12.0


def test_success_closes_the_breaker_for_good() -> None:
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(10.0)
    breaker.succeeded()
    breaker.failed(11.0)
    breaker.sent(11.0)
    assert breaker.closed_until == 0.0


def test_retries_are_a_share_of_requests_once_the_reserve_is_spent() -> None:
    budget = RetryBudget(0.0)
    assert sum(budget.take(0.0) for _ in range(500)) == RESERVE
    for _ in range(100):
        budget.request()
    assert sum(budget.take(0.0) for _ in range(500)) == pytest.approx(20, abs=1)


def test_retry_reserve_fills_again_with_time() -> None:
    budget = RetryBudget(0.0)
    while budget.take(0.0):
        pass
    assert budget.take(1.0)
    assert sum(budget.take(10_000.0) for _ in range(500)) == RESERVE


def test_history_tells_how_much_of_a_prompt_was_sent() -> None:
    history = History()
    history.add([1, 2, 3], now=0.0)
    history.add([1, 2, 9, 10], now=1.0)
    assert history.depth([1, 2, 3, 4], 2.0) == 3
    assert history.depth([1, 2, 9, 10], 2.0) == 4
    assert history.depth([7], 2.0) == 0
    assert history.depth([], 2.0) == 0


def test_history_forgets_what_was_not_used_for_longest_and_tails_first() -> None:
    history = History(capacity=4)
    history.add([1, 2, 3], now=0.0)
    history.add([8, 9], now=1.0)
    assert history.depth([1, 2, 3], 2.0) == 2
    assert history.depth([8, 9], 2.0) == 2
    assert len(history) == 4


def test_history_ages() -> None:
    history = History()
    history.add([1], now=0.0)
    assert history.depth([1], TTL_S - 1) == 1
    assert history.depth([1], TTL_S + 1) == 0
    history.clear()
    assert len(history) == 0


def test_what_cannot_be_read_is_counted_by_what_it_was() -> None:
    counts: defaultdict[str, int] = defaultdict(int)
    handler = UnreadableCounter(counts)
    logger = logging.getLogger("test_unreadable")
    logger.addHandler(handler)
    for event in ("lease_unreadable", "lease_unreadable", "kv_batch_unreadable", "redis_lost"):
        logger.warning(event, extra={"error": "version 9"})
    logger.removeHandler(handler)
    assert counts == {"lease": 2, "kv_batch": 1}
