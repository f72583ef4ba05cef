"""Heads and chunked bodies of engines, whole and in pieces, good and bad."""

from itertools import pairwise

import pytest
from httptools import HttpParserError
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_gateway.answer import ChunkedBody, read_head
from roundhouse_gateway.heads import HEADS_KEPT, HeadCache, cut_length


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def chunked(parts: list[bytes], end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (b"5\r\nhello\r\n", 3),
        (b"10\r\n0123456789abcdef\r\n", 4),
        (b"5;x=y\r\nhello\r\n", 0),
        (b"5\r\nhello\r\n0\r\n\r\n", 0),
        (b"5\r\nhell", 0),
        (b"0\r\n\r\n", 0),
        (b"\r\n", 0),
    ],
)
def test_a_read_that_is_one_chunk_is_known_as_such(data: bytes, start: int) -> None:
    assert ChunkedBody().whole_chunk(data) == start


def read(data: bytes, cuts: list[int]) -> tuple[bytes, bool]:
    body, out = ChunkedBody(), b""
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    for begin, end in pairwise(edges):
        if begin < end:
            piece = data[begin:end]
            start = body.whole_chunk(piece)
            out += piece[start:-2] if start else body.feed(piece)
    return out, body.complete


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.sampled_from([b"", b"0\r\n\r\n", b"00\r\n\r\n", b"0;x=y\r\nab: c\r\nd: e\r\n\r\n", b"2;x\r\n--\r\n0\r\n\r\n"]),
    st.lists(st.integers(0, 300), max_size=12),
)
def test_a_chunked_body_in_any_pieces(parts: list[bytes], end: bytes, cuts: list[int]) -> None:
    assert read(chunked(parts, end), cuts) == (b"".join(parts) + b"--" * end.startswith(b"2"), bool(end))


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello\rX",
        b"\r\n",
        b"123456789\r\n",
        b"0\r\n\r\nmore",
        b"x" * 5000,
    ],
)
@pytest.mark.parametrize("step", [1, 2, 10_000])
def test_broken_framing_is_noticed(data: bytes, step: int) -> None:
    cuts = list(range(0, len(data), step))
    with pytest.raises(ValueError, match=r"chunk|answer|literal"):
        read(data, cuts)


def test_a_head_is_read_once_for_all_lengths() -> None:
    first, length = read_head(head("X-One: 1", "Content-Length: 17", "server: a"))
    again, other = read_head(head("X-One: 1", "Content-Length: 18", "server: a"))
    assert first is again
    assert (length, other) == (17, 18)
    assert first.relayed == b"HTTP/1.1 200 OK\r\nX-One: 1\r\nserver: a\r\n"
    assert (first.reusable, first.chunked, first.is_event_stream) == (True, False, False)


@pytest.mark.parametrize(
    ("lines", "length", "reusable"),
    [
        (["content-length:5"], 5, True),
        (["x: content-length: 7", "content-length: 5"], 5, True),
        (["CONTENT-LENGTH: 5", "connection: close"], 5, False),
        (["transfer-encoding: chunked"], -1, True),
        (["connection: keep-alive"], -1, False),
    ],
)
def test_framing(lines: list[str], length: int, reusable: bool) -> None:
    for _ in range(2):
        parsed, found = read_head(head(*lines))
        assert (found, parsed.reusable) == (length, reusable)


@pytest.mark.parametrize(
    "data",
    [
        head("content-length: 5", "content-length: 6"),
        head("content-length: 5", "transfer-encoding: chunked"),
        head("content-length: x"),
        head("transfer-encoding: gzip"),
        head("upgrade: h2c", "connection: upgrade", status="101 Switching Protocols"),
        b"nonsense\r\n\r\n",
    ],
)
def test_what_cannot_be_framed_is_refused(data: bytes) -> None:
    for _ in range(2):
        with pytest.raises((ValueError, HttpParserError)):
            read_head(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\r\nContent-Length: 12\r\n\r\n", (b"a\r\nContent-Length: \r\n\r\n", 12)),
        (b"a\r\ncontent-length: \r\n\r\n", (b"a\r\ncontent-length: \r\n\r\n", -1)),
        (b"a\r\nx: content-length: 12\r\n\r\n", (b"a\r\nx: content-length: 12\r\n\r\n", -1)),
        (b"a\r\ncontent-length: +1\r\n\r\n", (b"a\r\ncontent-length: +1\r\n\r\n", -1)),
    ],
)
def test_digits_are_cut_out_of_a_head(data: bytes, expected: tuple[bytes, int]) -> None:
    assert cut_length(data) == expected


def test_the_cache_is_bounded() -> None:
    cache: HeadCache[int] = HeadCache()
    for number in range(3 * HEADS_KEPT):
        cache.put(b"%d" % number, number)
    assert sum(cache.get(b"%d" % number) is not None for number in range(3 * HEADS_KEPT)) <= HEADS_KEPT
    cache.put(b"x" * 5000, 1)
    assert cache.get(b"x" * 5000) is None
