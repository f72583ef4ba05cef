"""Bytes to tokens by two learned ratios."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_gateway.tokens import TextSize, TokenRatios, text_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("", (0, 0)), ("hello", (5, 0)), ("héllo", (4, 2)), ("日本", (0, 6)), ("a日", (1, 3)), ("\ud800x", (1, 1))],
)
def test_size_of_a_text(text: str, size: tuple[int, int]) -> None:
    measured = text_size(text)
    assert (measured.ascii_bytes, measured.other_bytes) == size
    assert measured.bytes == sum(size)


def test_start_values_are_four_ascii_bytes_a_token() -> None:
    assert TokenRatios().estimate(TextSize(4000)).tokens == 1000
    assert TokenRatios().estimate(TextSize(0)).tokens == 1
    assert TokenRatios().estimate(TextSize(0, 0, 2)).tokens == 512


def test_two_ratios_are_learned_apart() -> None:
    ratios, random = TokenRatios(), Random(1)
    for _ in range(500):
        size = TextSize(random.randrange(0, 5000), random.randrange(0, 5000))
        ratios.learn(size, round(size.ascii_bytes * 0.2 + size.other_bytes * 0.65))
    assert ratios.ascii == pytest.approx(0.2, rel=0.05)
    assert ratios.other == pytest.approx(0.65, rel=0.05)


def test_ascii_alone_does_not_move_the_other_ratio() -> None:
    ratios = TokenRatios()
    for _ in range(300):
        ratios.learn(TextSize(4000), 800)
    assert ratios.ascii == pytest.approx(0.2, rel=0.05)
    assert ratios.other == pytest.approx(0.4, rel=0.01)


def test_parts_that_are_no_text_have_their_own_size() -> None:
    ratios = TokenRatios()
    for _ in range(100):
        ratios.learn(TextSize(400, 0, 2), 100 + 2 * 700)
    assert ratios.part == pytest.approx(700, rel=0.02)
    assert ratios.ascii == 0.25


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(-5, 10**7)), max_size=40))
def test_ratios_stay_sensible_whatever_an_engine_reports(samples: list[tuple[int, int, int]]) -> None:
    ratios = TokenRatios()
    for ascii_bytes, other_bytes, tokens in samples:
        ratios.learn(TextSize(ascii_bytes, other_bytes), tokens)
        assert TokenRatios.LEAST <= ratios.ascii <= TokenRatios.MOST
        assert TokenRatios.LEAST <= ratios.other <= TokenRatios.MOST


@pytest.mark.parametrize(
    ("matched", "expected"),
    [(0, 0), (256, (256 + 128) // 4 - 8), (2560, (2560 + 128) // 4 - 8), (3840, 4000 // 4 - 8)],
)
def test_matched_bytes_become_cached_tokens(matched: int, expected: int) -> None:
    assert TokenRatios().estimate(TextSize(4000)).cached_tokens(matched, 16, b"a" * 4000) == expected


def test_the_last_token_is_never_cached() -> None:
    assert TokenRatios().estimate(TextSize(4000)).cached_tokens(3840, 0, b"a" * 4000) == 999
    assert TokenRatios().estimate(TextSize(0)).cached_tokens(256, 16, b"") == 0


def test_cached_tokens_are_counted_by_the_bytes_of_the_cached_beginning() -> None:
    english, chinese = "a" * 2048, "路" * 512
    for text, expected in ((english + chinese, (1024 + 128) // 4), (chinese + english, round((1024 + 128) * 0.4))):
        estimate = TokenRatios().estimate(text_size(text))
        assert estimate.cached_tokens(1024, 0, text.encode()) == expected


def test_a_profile_tells_where_to_start_and_answers_go_on_from_there() -> None:
    ratios = TokenRatios()
    ratios.expect(1.0, 0.0)
    assert ratios.estimate(TextSize(1000)).tokens == 1000
    assert ratios.estimate(TextSize(0, 1000)).tokens == 400
    for _ in range(50):
        ratios.learn(TextSize(4000), 2000)
    assert ratios.estimate(TextSize(1000)).tokens == pytest.approx(500, abs=10)
