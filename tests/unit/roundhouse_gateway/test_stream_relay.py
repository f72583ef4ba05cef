"""The SSE relay: whole events, marks, the dropped usage event, renamed models; fed in pieces of any size."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_engines.dialect import Mark, Usage, load_dialect
from roundhouse_gateway.stream_relay import MAX_EVENT_BYTES, ModelRename, StreamRelay, split_events

DIALECT = load_dialect("vllm")
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"model":"e","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
ERROR = b'data: {"error":{"message":"boom","code":500}}\n\n'
ABORT = b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\n'


def event(content: str, ending: str = "\n\n") -> bytes:
    chunk = {"id": "c", "model": "e", "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + ending.encode()


def relay(*, drop_usage: bool = True, rename: ModelRename | None = None) -> StreamRelay:
    return StreamRelay(DIALECT, drop_usage=drop_usage, rename=rename)


def test_whole_events_pass_as_they_are() -> None:
    stream = relay(drop_usage=False)
    events = [event("a"), event('b "usage" [DONE] "error"'), event("c", "\r\n\r\n"), USAGE, DONE]
    assert b"".join(stream.feed(each) for each in events) == b"".join(events)
    assert (stream.started, stream.end, stream.usage) == (True, Mark.DONE, Usage(9, 2, None))


def test_half_an_event_waits_for_its_other_half() -> None:
    stream = relay()
    first = event("hello")
    assert stream.feed(first[:20]) == b""
    assert not stream.started
    assert stream.feed(first[20:] + event("world")[:5]) == first
    assert stream.feed(event("world")[5:]) == event("world")


def test_usage_event_is_read_and_dropped_when_nobody_asked() -> None:
    stream = relay(drop_usage=True)
    assert stream.feed(event("a") + USAGE + DONE) == event("a") + DONE
    assert stream.usage == Usage(9, 2, None)


def test_comments_do_not_start_a_stream_and_leave_with_its_first_event() -> None:
    stream = relay()
    assert stream.feed(b": keep-alive\n\n") == b""
    assert not stream.started
    assert stream.feed(b": again\n\n" + event("a")) == b": keep-alive\n\n: again\n\n" + event("a")
    assert stream.started
    assert stream.feed(b": keep-alive\n\n") == b": keep-alive\n\n"


def test_endless_comments_are_not_kept() -> None:
    stream = relay()
    for _ in range(100):
        assert stream.feed(b": " + b"x" * 2000 + b"\n\n") == b""
    assert len(stream.feed(event("a"))) < 70_000


@pytest.mark.parametrize(("last", "mark"), [(ERROR, Mark.ERROR), (ABORT, Mark.ABORT)])
def test_what_breaks_a_stream_never_passes_nor_does_what_follows(last: bytes, mark: Mark) -> None:
    stream = relay()
    assert stream.feed(event("a") + last + DONE) == event("a")
    assert (stream.end, stream.error_event) == (mark, last)
    assert stream.feed(DONE) == b""


@pytest.mark.parametrize("last", [ERROR, ABORT])
def test_a_stream_that_begins_broken_has_not_started(last: bytes) -> None:
    stream = relay()
    assert stream.feed(b": hi\n\n" + last) == b""
    assert not stream.started


def test_nothing_passes_after_done() -> None:
    stream = relay()
    assert stream.feed(event("a") + DONE + event("late")) == event("a") + DONE
    assert stream.feed(event("later")) == b""


def test_model_is_renamed_in_every_event_but_never_in_text() -> None:
    stream = relay(rename=ModelRename("e", "alias/α"))
    said = event('"model":"e"')
    spaced = said.replace(b'"model":"e"', b'"model": "e"', 1)
    out = stream.feed(said + spaced)
    first, second = split_events(out)
    assert json.loads(first[6:])["model"] == json.loads(second[6:])["model"] == "alias/α"
    assert json.loads(first[6:])["choices"][0]["delta"]["content"] == '"model":"e"'


def test_an_event_without_end_is_refused() -> None:
    stream = relay()
    stream.feed(b"x" * MAX_EVENT_BYTES)
    with pytest.raises(OverflowError, match="longer than"):
        stream.feed(b"x")


pieces = st.lists(st.integers(1, 60), min_size=1, max_size=60)
events = st.lists(
    st.one_of(
        st.text(max_size=30).map(event),
        st.text(max_size=30).map(lambda text: event(text, "\r\n\r\n")),
        st.just(b": keep-alive\n\n"),
        st.just(USAGE),
    ),
    max_size=8,
)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    out, at = [], 0
    while at < len(data):
        size = sizes[len(out) % len(sizes)]
        out.append(data[at : at + size])
        at += size
    return out


@given(events, pieces, st.sampled_from([DONE, ERROR, ABORT, b"", b'data: {"cut']))
def test_pieces_of_any_size_give_the_same_stream(sent: list[bytes], sizes: list[int], last: bytes) -> None:
    stream = relay(drop_usage=True)
    out = b"".join(stream.feed(piece) for piece in cut(b"".join(sent) + last, sizes))
    passed = [each for each in [*sent, *([last] if last is DONE else [])] if each != USAGE]
    if not any(each.startswith(b"data:") for each in passed):
        passed = []
    assert out == b"".join(passed)
    assert stream.end is {DONE: Mark.DONE, ERROR: Mark.ERROR, ABORT: Mark.ABORT}.get(last)


@given(events)
def test_split_events_are_the_block_again(sent: list[bytes]) -> None:
    assert split_events(b"".join(sent)) == sent
