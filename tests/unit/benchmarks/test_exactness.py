"""How a prediction is judged: in bytes, within a block and a chunk, what was in flight apart."""

from benchmarks.exactness.judgement import Judgement, Sent, figures_of, in_flight_with, shared_chunks


def sent(data: bytes, began: float, ended: float, **body: str) -> Sent:
    return Sent("chat", "/v1/chat/completions", body, data, began, ended, {})


def judged(
    *, in_flight: bool = False, matched: int = 0, cached: int = 0, tokens: tuple[int, int] = (0, 0)
) -> Judgement:
    return Judgement("chat", in_flight, matched, cached, *tokens, tolerance=300)


def test_shared_beginnings_count_in_whole_chunks() -> None:
    assert shared_chunks(b"a" * 600, b"a" * 511) == 1
    assert shared_chunks(b"a" * 600, b"a" * 300 + b"b" * 300) == 1
    assert shared_chunks(b"a" * 600, b"b" + b"a" * 599) == 0
    assert shared_chunks(b"a" * 512, b"a" * 512) == 2


def test_a_request_isin_flight_with_with_one_that_computes_what_nobody_had_before() -> None:
    first, second = sent(b"a" * 600, 0, 10), sent(b"a" * 600, 5, 6)
    assert in_flight_with(second, [first, second])
    assert not in_flight_with(first, [first, second])


def test_of_two_that_begin_together_both_are_in_flight() -> None:
    one, other = sent(b"a" * 600, 0.0, 10), sent(b"a" * 600, 0.1, 10)
    assert in_flight_with(one, [one, other])
    assert in_flight_with(other, [one, other])


def test_a_prefix_that_somebody_left_long_ago_is_notin_flight_with() -> None:
    old, busy, late = sent(b"a" * 600, 0, 1), sent(b"a" * 600, 4, 9), sent(b"a" * 600, 5, 6)
    assert not in_flight_with(late, [old, busy, late])


def test_another_salt_shares_nothing() -> None:
    first, second = sent(b"a" * 600, 0, 10), sent(b"a" * 600, 5, 6, cache_salt="x")
    assert not in_flight_with(second, [first, second])


def test_figures_leave_out_what_wasin_flight_with() -> None:
    figures = figures_of(
        [
            judged(matched=512, cached=600, tokens=(100, 110)),
            judged(matched=1024, cached=512, tokens=(200, 100)),
            judged(matched=0, cached=512, tokens=(0, 100)),
            judged(matched=0, cached=900, in_flight=True, tokens=(0, 900)),
        ]
    )
    assert figures["requests"] == 4
    assert figures["in_flight_share"] == 0.25
    assert figures["within_one_block_share"] == round(1 / 3, 4)
    assert figures["false_hit_share"] == round(1 / 3, 4)
    assert figures["token_error_mae"] == 70.0


def test_nothing_sent_is_no_division_by_zero() -> None:
    assert figures_of([])["within_one_block_share"] == 0
