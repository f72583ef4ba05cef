"""The client side of HTTP: order, limits, timeouts, and what a hostile client can do."""

import json

import pytest
from roundhouse_gateway.client_connection import LINGER_S, ClientConnection
from roundhouse_gateway.settings import Limits, Settings

from tests.unit.roundhouse_gateway.fakes import Bench, FakeTransport, member, post

SMALL = Limits(head_bytes=1000, headers=20, body_bytes=2000)
MODELS = b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n"


@pytest.fixture
def bench() -> Bench:
    return Bench([member(0)], Settings(limits=SMALL))


def replies(transport: FakeTransport) -> list[tuple[int, dict[str, object]]]:
    """(status, JSON body) of every answer, in order."""
    found, rest = [], transport.sent
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            continue
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found.append((int(head[9:12]), json.loads(rest[:length])))
        rest = rest[length:]
    return found


def code(reply: tuple[int, dict[str, object]]) -> tuple[int, object]:
    error = reply[1]["error"]
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    return reply[0], error["code"]


def feed(connection: ClientConnection, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        connection.data_received(data[at : at + size])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_requests_in_pieces_of_any_size(bench: Bench, size: int) -> None:
    connection, transport = bench.connect()
    feed(connection, MODELS + post(b'{"model":"nope"}') + MODELS, size)
    assert [status for status, _ in replies(transport)] == [200, 404, 200]


def test_pipelined_requests_are_answered_in_order(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(b'{"model":"m","messages":[]}') + MODELS + post(b"{"))
    assert transport.sent == b""
    assert not transport.reading
    bench.busy().answer(b'{"n":1}')
    assert [status for status, _ in replies(transport)] == [200, 200, 400]
    assert transport.reading
    bench.assert_empty()


def test_a_flood_of_pipelined_requests_is_no_deep_recursion(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(b'{"model":"m","messages":[]}') + MODELS * 3000)
    bench.busy().answer(b"{}")
    assert len(replies(transport)) == 3001


def test_chunked_body_is_put_together(bench: Bench) -> None:
    connection, _ = bench.connect()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n"
    feed(connection, head + b'9;x=y\r\n{"model":\r\n3\r\n"m"\r\n1\r\n}\r\n0\r\nhost: evil\r\n\r\n', 5)
    sent = bench.busy().take()
    assert sent.endswith(b'content-length: 13\r\n\r\n{"model":"m"}')
    assert b"evil" not in sent


def test_expect_is_answered_when_its_turn_has_come(bench: Bench) -> None:
    connection, transport = bench.connect()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    connection.data_received(head)
    assert transport.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.data_received(b"{}" + post(b'{"model":"m","messages":[]}') + head)
    assert transport.sent.count(b"100 Continue") == 1
    bench.busy().answer(b"{}")
    assert transport.sent.endswith(b"HTTP/1.1 100 Continue\r\n\r\n")


def test_expect_with_a_body_that_is_too_large_is_refused_at_once(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(b"POST /v1/completions HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2001\r\n\r\n")
    assert code(replies(transport)[0]) == (413, "body_too_large")
    assert b"100 Continue" not in transport.sent


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 1100 + b"\r\n\r\n", (431, "headers_too_large")),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 30 + b"\r\n", (431, "headers_too_large")),
        (b"GET / HTTP/1.1\r\n" + b"te: b\r\n" * 30 + b"\r\n", (431, "headers_too_large")),
        (b"GET /" + b"a" * 1100, (431, "headers_too_large")),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 1100, (431, "headers_too_large")),
        (post(b"x" * 2001), (413, "body_too_large")),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n7d1\r\n" + b"x" * 2001, (413, "body_too_large")),
        (b"NONSENSE\r\n\r\n", (400, "invalid_request")),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", (400, "invalid_request")),
        (b"POST / HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n", (400, "invalid_request")),
        (b"POST / HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n", (400, "invalid_request")),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", (400, "invalid_request")),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", (400, "invalid_request")),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\nxx", (405, "invalid_request")),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, "invalid_request")),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", (400, "invalid_request")),
        (b"POST / HTTP/1.1\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\n", (415, "invalid_request")),
    ],
)
@pytest.mark.parametrize("size", [100_000, 100])
def test_what_breaks_the_protocol_or_a_limit_ends_the_connection(
    bench: Bench, data: bytes, expected: tuple[int, str], size: int
) -> None:
    connection, transport = bench.connect()
    feed(connection, data + MODELS, size)
    (only,) = replies(transport)
    assert code(only) == expected
    assert b"connection: close\r\n" in transport.sent
    assert transport.half_closed


def test_refusal_waits_for_the_answer_before_it(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(b'{"model":"m","messages":[]}') + b"NONSENSE\r\n\r\n")
    assert transport.sent == b""
    bench.busy().answer(b"{}")
    assert [status for status, _ in replies(transport)] == [200, 400]
    assert transport.half_closed


def test_upgrade_is_not_taken_and_the_request_served(bench: Bench) -> None:
    connection, transport = bench.connect()
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    connection.data_received(post(b'{"model":"m","messages":[]}', headers=upgrade) + MODELS)
    engine = bench.busy()
    sent = engine.take()
    assert b"upgrade" not in sent.lower()
    assert sent.endswith(b'content-length: 27\r\n\r\n{"model":"m","messages":[]}')
    engine.answer(b"{}")
    assert [status for status, _ in replies(transport)] == [200, 200]


@pytest.mark.parametrize(
    ("data", "after", "status"),
    [
        (b"", SMALL.header_timeout_s, None),
        (b"GET /v1/mo", SMALL.header_timeout_s, 408),
        (b"POST / HTTP/1.1\r\ncontent-length: 10\r\n\r\n{", SMALL.body_timeout_s, 408),
        (MODELS, SMALL.idle_timeout_s, 200),
    ],
)
def test_a_slow_client_is_not_waited_for(bench: Bench, data: bytes, after: float, status: int | None) -> None:
    connection, transport = bench.connect()
    bench.plane.heartbeat = bench.clock()
    connection.data_received(data)
    connection.check(bench.clock() + after - 1)
    assert not transport.closed
    assert not transport.half_closed
    connection.check(bench.clock() + after + 1)
    assert transport.closed or transport.half_closed
    assert [found for found, _ in replies(transport)] == ([] if status is None else [status])


def test_a_client_that_keeps_talking_after_a_refusal_is_cut(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(b"NONSENSE\r\n\r\n")
    connection.data_received(b"x" * 100_000)
    assert not transport.closed
    connection.check(bench.clock() + LINGER_S + 1)
    assert transport.closed


def test_a_client_that_takes_nothing_is_cut(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(b'{"model":"m","messages":[]}'))
    connection.pause_writing()
    connection.check(bench.clock() + SMALL.stall_timeout_s - 1)
    assert not transport.closed
    connection.check(bench.clock() + SMALL.stall_timeout_s + 1)
    assert transport.closed


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"GET /v1/models HTTP/1.1\r\n\r\n", True),
        (b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n", False),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", False),
    ],
)
def test_connection_is_kept_when_the_client_wants_it(bench: Bench, head: bytes, kept: bool) -> None:
    connection, transport = bench.connect()
    connection.data_received(head)
    assert (b"connection: close" in transport.sent) is not kept
    assert transport.half_closed is not kept


def test_half_closed_is_gone(bench: Bench) -> None:
    connection, _ = bench.connect()
    connection.data_received(post(b'{"model":"m","messages":[]}'))
    engine = bench.busy()
    assert not connection.eof_received()
    connection.connection_lost(None)
    assert engine.transport.closed
    bench.assert_empty()


def test_a_known_head_is_forwarded_as_when_it_was_new(bench: Bench) -> None:
    connection, transport = bench.connect()
    sent = []
    for text in ("a", "bcd" * 100, "e"):
        connection.data_received(post(b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text.encode()))
        engine = bench.busy()
        sent.append(engine.take())
        engine.answer(b"{}")
    assert len(bench.plane.heads) == 1
    heads = [data.partition(b"\r\n\r\n")[0].split(b"\r\n") for data in sent]
    assert [[line.partition(b":")[0] for line in head] for head in heads[1:]] == [
        [line.partition(b":")[0] for line in heads[0]]
    ] * 2
    assert b"e" in sent[2].partition(b"\r\n\r\n")[2]
    assert [status for status, _ in replies(transport)] == [200, 200, 200]
    bench.assert_empty()


def test_limits_hold_for_known_heads(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(b"{}"))
    connection.data_received(post(b"x" * 2001))
    assert [code(reply) for reply in replies(transport)] == [(400, "invalid_request"), (413, "body_too_large")]


def test_heads_that_do_not_say_all_are_parsed_each_time(bench: Bench) -> None:
    ahead = post(b'{"model":"m","messages":[]}', headers=b"x-ahead: 1\r\n")
    for data in (
        ahead + post(b"{}", headers=b"x-behind: 1\r\n"),
        post(b"{}", headers=b"connection: close\r\n"),
        MODELS,
        b"POST / HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    ):
        connection, _ = bench.connect()
        connection.data_received(data)
        for engine in bench.engines.values():
            if engine.busy:
                engine.answer(b"{}")
    connection, _ = bench.connect()
    connection.data_received(ahead)  # remembered, but the next one, which was sent ahead, must not be under its name
    connection.data_received(MODELS)
    assert [head.target for head in bench.plane.heads.values()] == [b"/v1/chat/completions"]
    assert b"x-ahead" in next(iter(bench.plane.heads.values())).lines


@pytest.mark.parametrize(
    "coding",
    [b"gzip, chunked", b"chunked, gzip", b"gzip", b"identity", b"chunked\r\ntransfer-encoding: chunked", b"xchunked"],
)
def test_other_transfer_codings_are_not_taken_for_chunked(bench: Bench, coding: bytes) -> None:
    connection, transport = bench.connect()
    connection.data_received(b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: " + coding + b"\r\n\r\n")
    connection.data_received(b"2\r\n{}\r\n0\r\n\r\n" + MODELS)
    assert [status for status, _ in replies(transport)] in ([501], [400])
    assert transport.half_closed


@pytest.mark.parametrize("size", [100, 10_000])
def test_bodies_of_all_clients_together_are_bounded(size: int) -> None:
    bench = Bench([member(0)], Settings(limits=Limits(held_bytes=1000)))
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}'
    first, _ = bench.connect()
    second, refused = bench.connect()
    first.data_received(post(body % (b"a" * 500)))
    engine = bench.busy()
    for _ in range(2):
        feed(second, post(body % (b"b" * 500)), size)
        assert code(replies(refused)[0]) == (503, "overloaded")
        assert b"retry-after: 1" in refused.sent
        second.connection_lost(None)
        second, refused = bench.connect()
    engine.answer(b"{}")
    assert bench.plane.held_bytes == 0
    feed(second, post(body % (b"b" * 500)), size)
    bench.busy().answer(b"{}")
    assert replies(refused)[0][0] == 200
    assert bench.plane.held_bytes == 0


def test_a_body_that_breaks_off_is_held_no_longer(bench: Bench) -> None:
    connection, _ = bench.connect()
    connection.data_received(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 500\r\n\r\n" + b"x" * 300)
    assert bench.plane.held_bytes == 300
    connection.connection_lost(None)
    assert bench.plane.held_bytes == 0
