"""Endpoints and errors, forwarding, retries, broken streams: one data plane, engines that the test plays."""

import asyncio
import json
from typing import Any

import pytest
from roundhouse_engines.dialect import Mark
from roundhouse_gateway.answer import AnswerHead
from roundhouse_gateway.settings import Limits, Patience, Settings
from roundhouse_kv.catalogue_store import Catalogue

from tests.unit.roundhouse_gateway.fakes import Bench, FakeTransport, entry, lease, member, post

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
ASKING = b'{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}'
DONE = b"data: [DONE]\n\n"
USAGE = (
    b'data: {"model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)


def event(text: str, model: str = "m") -> bytes:
    return b"data: " + json.dumps({"model": model, "choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


def status(transport: FakeTransport) -> int:
    return int(transport.sent[9:12])


def error(transport: FakeTransport) -> dict[str, Any]:
    found = json.loads(transport.sent.partition(b"\r\n\r\n")[2])["error"]
    assert isinstance(found, dict)
    return found


def header(transport: FakeTransport, name: str) -> str | None:
    head = transport.sent.partition(b"\r\n\r\n")[0].decode()
    lines = [line.split(": ", 1) for line in head.split("\r\n")[1:]]
    return dict(lines).get(name)


def dechunked(transport: FakeTransport) -> tuple[bytes, bool]:
    """(body so far, whether it has ended)."""
    rest, body = transport.sent.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            return body, True
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body, False


@pytest.fixture
def bench() -> Bench:
    return Bench([member(0), member(1), member(2)])


# -- endpoints


@pytest.mark.parametrize(
    ("request_", "expected", "code", "param"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", 404, "invalid_request", None),
        (b"GET /v1/modelsx HTTP/1.1\r\n\r\n", 404, "invalid_request", None),
        (post(CHAT, "/v1/embeddings"), 404, "invalid_request", None),
        (post(CHAT, "/metrics"), 404, "invalid_request", None),
        (b"GET /v1/chat/completions HTTP/1.1\r\n\r\n", 405, "invalid_request", None),
        (b"DELETE /v1/models HTTP/1.1\r\n\r\n", 405, "invalid_request", None),
        (post(b"{oops"), 400, "invalid_json", None),
        (post(b'{"messages":[]}'), 400, "invalid_request", "model"),
        (post(b'{"model":5}'), 400, "invalid_request", "model"),
        (post(b'{"model":"who"}'), 404, "model_not_found", "model"),
        (b"GET /v1/models/who HTTP/1.1\r\n\r\n", 404, "model_not_found", "model"),
        (post(b'{"model":"m","kv_transfer_params":{}}'), 400, "control_field", "kv_transfer_params"),
        (post(b'{"model":"m","priority":1}'), 400, "control_field", "priority"),
        (post(b'{"model":"m","x":{"priority":1},"data_parallel_rank":0}'), 400, "control_field", "data_parallel_rank"),
    ],
)
def test_errors_have_openai_shape_and_a_stable_code(
    bench: Bench, request_: bytes, expected: int, code: str, param: str | None
) -> None:
    connection, transport = bench.connect()
    connection.data_received(request_)
    assert status(transport) == expected
    assert (error(transport)["code"], error(transport)["param"]) == (code, param)
    assert isinstance(error(transport)["message"], str)
    assert not transport.half_closed
    bench.assert_empty()


def test_405_says_what_is_allowed(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(b"GET /v1/completions HTTP/1.1\r\n\r\n")
    assert header(transport, "allow") == "POST"


def test_head_gets_no_body(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(b"HEAD /v1/models HTTP/1.1\r\n\r\n")
    assert status(transport) == 405
    assert transport.sent.endswith(b"\r\n\r\n")


def test_models_lists_each_service_once_under_its_first_name(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(b"GET /v1/models?limit=3 HTTP/1.1\r\n\r\n")
    listed = json.loads(transport.sent.partition(b"\r\n\r\n")[2])
    assert listed == {
        "object": "list",
        "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "roundhouse"}],
    }


@pytest.mark.parametrize("name", ["m", "alias", "ns/s", "ns%2Fs"])
def test_a_model_is_found_under_every_name(bench: Bench, name: str) -> None:
    connection, transport = bench.connect()
    connection.data_received(f"GET /v1/models/{name} HTTP/1.1\r\n\r\n".encode())
    assert json.loads(transport.sent.partition(b"\r\n\r\n")[2])["id"] == name.replace("%2F", "/")


def test_without_a_catalogue_nothing_is_unknown(bench: Bench) -> None:
    bench.feed.catalogue, bench.feed.views = None, {}
    bench.refresh()
    for request in (post(CHAT), b"GET /v1/models HTTP/1.1\r\n\r\n", b"GET /v1/models/m HTTP/1.1\r\n\r\n"):
        connection, transport = bench.connect()
        connection.data_received(request)
        assert (status(transport), error(transport)["code"]) == (503, "no_replica")
        assert header(transport, "retry-after") is not None
    assert not bench.plane.ready


def test_a_known_model_without_replicas_is_503_never_404(bench: Bench) -> None:
    bench.view.change(entry([]), bench.clock())
    bench.refresh()
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    assert (status(transport), error(transport)["code"]) == (503, "no_replica")
    assert header(transport, "retry-after") == "5"


def test_a_service_whose_replicas_all_drain_is_503(bench: Bench) -> None:
    for number in range(3):
        bench.view.hear(lease(member(number), state="draining", remaining_ms=9000), bench.clock())
    bench.refresh()
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    assert (status(transport), error(transport)["code"]) == (503, "no_replica")


def test_oldest_service_wins_a_name_and_the_full_name_always_works(bench: Bench) -> None:
    younger = entry([member(7)], names=("m", "own"), name="t", created=2)
    view = type(bench.view)(bench.view.keys, younger, bench.view.index, bench.view.books)
    bench.feed.views = {"ns/t": view, "ns/s": bench.view}
    bench.feed.catalogue = Catalogue(1, 2, {"ns/t": younger, "ns/s": bench.view.entry})
    bench.refresh()
    keys = {name: bench.fleet.resolve(name).key for name in ("m", "alias", "own", "ns/s", "ns/t")}  # type: ignore[union-attr]
    assert keys == {"m": "ns/s", "alias": "ns/s", "own": "ns/t", "ns/s": "ns/s", "ns/t": "ns/t"}


def test_too_many_requests_in_flight_are_overload() -> None:
    bench = Bench([member(0)], Settings(limits=Limits(in_flight=1)))
    first, _ = bench.connect()
    first.data_received(post(CHAT))
    second, transport = bench.connect()
    second.data_received(post(CHAT))
    assert (status(transport), error(transport)["code"]) == (503, "overloaded")


# -- forwarding


def test_request_bytes_reach_the_engine_unchanged(bench: Bench) -> None:
    body = b'{ "model":"m", "messages":[{"content":"h\\u00e9 \xc3\xa9"}],"temperature":0.70,"unknown":[1.0,{}] }'
    connection, _ = bench.connect()
    headers = b"Authorization: Bearer k\r\nX-Request-Id: mine\r\nX-Data-Parallel-Rank: 1\r\n"
    headers += b"Accept-Encoding: gzip\r\nTE: trailers\r\n"
    connection.data_received(post(body, "/v1/chat/completions?x=1", headers))
    engine = bench.busy()
    head, _, sent = engine.take().partition(b"\r\n\r\n")
    assert sent == body
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/chat/completions?x=1 HTTP/1.1"
    assert lines[1] == b"host: 127.0.0.1:%d" % engine.replica.member.port
    assert lines[2:4] == [b"Content-Type: application/json", b"Authorization: Bearer k"]
    assert [line.partition(b":")[0] for line in lines[4:]] == [b"x-request-id", b"content-length"]


def test_response_bytes_reach_the_client_unchanged(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    body = b'{"model": "m", "choices": [], "extra" : 1.50}'
    bench.busy().say(
        b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Type: application/json\r\nX-Request-Id: theirs\r\n"
        b"Keep-Alive: timeout=5\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    assert transport.sent.partition(b"\r\n\r\n")[2] == body
    assert header(transport, "Server") == "uvicorn"
    assert (header(transport, "X-Request-Id"), header(transport, "Keep-Alive")) == (None, None)
    request_id = header(transport, "x-request-id")
    assert request_id is not None
    assert request_id.startswith("abcdef01")
    assert header(transport, "x-roundhouse-predicted-cached-tokens") == "0"
    assert header(transport, "x-roundhouse-reason") == "random"
    bench.assert_empty()


def test_explaining_headers_can_be_switched_off() -> None:
    bench = Bench([member(0)], Settings(explain_headers=False))
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    bench.busy().answer(b"{}")
    assert b"x-roundhouse" not in transport.sent
    assert header(transport, "x-request-id") is not None


@pytest.mark.parametrize("answer", ["400 Bad Request", "401 Unauthorized", "404 Not Found", "422 No", "429 Slow down"])
def test_an_engines_4xx_is_the_clients_verbatim(bench: Bench, answer: str) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(b'{"model":"alias","messages":[]}'))
    bench.busy().answer(b'{"detail":"not \\"ours\\"","model":"m"}', answer)
    assert status(transport) == int(answer[:3])
    assert transport.sent.endswith(b'\r\n\r\n{"detail":"not \\"ours\\"","model":"m"}')
    assert not transport.half_closed
    assert all(replica.breaker.closed_until == 0 for replica in bench.service.replicas.values())
    bench.assert_empty()


def test_alias_is_renamed_both_ways(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(b'{"model":"alias","messages":[]}'))
    engine = bench.busy()
    assert engine.take().endswith(b'{"model":"m","messages":[]}')
    engine.answer(b'{"model":"m","choices":[]}')
    assert transport.sent.endswith(b'{"model":"alias","choices":[]}')


def test_headers_and_first_event_leave_in_one_write_and_not_before(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    engine = bench.busy()
    assert b'"stream_options":{"include_usage":true}' in engine.take()
    engine.open_stream()
    engine.events(b": keep-alive\n\n")
    engine.events(event("a")[:10])
    assert transport.sent == b""
    engine.events(event("a")[10:])
    assert transport.sent.startswith(b"HTTP/1.1 200 OK\r\n")
    assert dechunked(transport) == (b": keep-alive\n\n" + event("a"), False)
    engine.events(event("b"), USAGE, DONE)
    assert dechunked(transport) == (b": keep-alive\n\n" + event("a") + event("b") + DONE, False)
    engine.events(last=True)
    assert dechunked(transport) == (b": keep-alive\n\n" + event("a") + event("b") + DONE, True)
    assert not transport.half_closed
    bench.assert_empty()


def test_usage_stays_when_the_client_asked_for_it(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(ASKING))
    engine = bench.busy()
    assert engine.take().endswith(ASKING)
    engine.open_stream()
    engine.events(event("a"), USAGE, DONE, last=True)
    assert dechunked(transport) == (event("a") + USAGE + DONE, True)


def test_http_1_0_gets_no_chunks_and_the_connection_ends(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    engine = bench.busy()
    engine.open_stream()
    engine.events(event("a"), DONE, last=True)
    assert b"chunked" not in transport.sent
    assert transport.sent.endswith(b"\r\n\r\n" + event("a") + DONE)
    assert transport.half_closed


def test_a_stream_answered_by_json_is_passed_on(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    bench.busy().answer(b'{"choices":[]}')
    assert transport.sent.endswith(b'content-length: 14\r\n\r\n{"choices":[]}')
    bench.assert_empty()


def test_back_pressure_reaches_the_engine_and_goes_again(bench: Bench) -> None:
    connection, _ = bench.connect()
    connection.data_received(post(STREAM))
    engine = bench.busy()
    engine.open_stream()
    engine.events(event("a"))
    connection.pause_writing()
    assert not engine.transport.reading
    bench.clock.now += 1000
    for exchange in list(bench.plane.exchanges):
        exchange.check(bench.clock())
    assert bench.plane.exchanges, "a slow reader is not a silent engine"
    connection.resume_writing()
    assert engine.transport.reading


def test_a_connection_goes_back_reading_even_if_its_last_client_was_slow(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    engine = bench.busy()
    engine.open_stream()
    engine.events(event("a"))
    write = transport.write

    def full(data: bytes) -> None:
        write(data)
        connection.pause_writing()

    transport.write = full  # type: ignore[method-assign]
    engine.events(DONE, last=True)
    assert engine.transport.reading
    bench.assert_empty()


# -- failures before the first event


def fail_by_status(engine: Any) -> None:
    engine.answer(b'{"error":{"message":"boom"}}', "500 Oops")


def fail_busy(engine: Any) -> None:
    engine.answer(b'{"error":{"message":"busy"}}', "503 Busy")


def fail_after_headers(engine: Any) -> None:
    engine.open_stream()
    engine.events(b": hi\n\n")
    engine.die()


def fail_by_abort(engine: Any) -> None:
    engine.open_stream()
    engine.events(b'data: {"choices":[{"finish_reason":"abort"}]}\n\n', DONE, last=True)


def fail_by_error_event(engine: Any) -> None:
    engine.open_stream()
    engine.events(b'data: {"error":{"message":"boom","code":500}}\n\n', DONE, last=True)


def fail_by_nonsense(engine: Any) -> None:
    engine.say(b"SSH-2.0-OpenSSH\r\n")


def fail_by_empty_stream(engine: Any) -> None:
    engine.open_stream()
    engine.events(last=True)


FAILURES = [
    (fail_by_status, "status"),
    (fail_busy, "busy"),
    (fail_after_headers, "cut"),
    (fail_by_abort, "abort"),
    (fail_by_error_event, "error"),
    (fail_by_nonsense, "protocol"),
    (fail_by_empty_stream, "cut"),
]


@pytest.mark.parametrize(("fail", "cause"), FAILURES)
def test_a_failure_before_the_first_event_is_sent_elsewhere(bench: Bench, fail: Any, cause: str) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    first = bench.busy()
    fail(first)
    assert transport.sent == b""
    second = bench.busy()
    assert second is not first
    assert second.take().endswith(STREAM[1:])
    second.open_stream()
    second.events(event("a"), DONE, last=True)
    assert dechunked(transport) == (event("a") + DONE, True)
    assert header(transport, "x-roundhouse-replica") == second.replica.name
    assert header(transport, "x-roundhouse-reason") == "retry"
    bench.assert_empty()
    bench.refresh()
    assert bench.plane.metrics.retries[cause] == 1


async def test_a_kept_connection_that_was_closed_costs_no_retry(bench: Bench) -> None:
    connection, _ = bench.connect()
    connection.data_received(post(CHAT))
    engine = bench.busy()
    engine.die()
    assert len(engine.replica.pool._dials) == 1
    (exchange,) = bench.plane.exchanges
    assert [attempt.outcome for attempt in exchange.record().attempts] == ["open"]
    assert engine.replica.breaker.closed_until == 0
    await engine.replica.pool.close()


def test_after_the_last_attempt_the_client_is_told(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    for _ in range(3):
        assert transport.sent == b""
        fail_by_status(bench.busy())
    assert (status(transport), error(transport)["code"]) == (502, "upstream_failed")
    assert "boom" in error(transport)["message"]
    assert not transport.half_closed
    bench.assert_empty()


def test_busy_everywhere_is_overload_with_retry_after(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    for _ in range(3):
        fail_busy(bench.busy())
    assert (status(transport), error(transport)["code"]) == (503, "overloaded")
    assert header(transport, "retry-after") == "1"
    assert all(replica.breaker.closed_until == 0 for replica in bench.service.replicas.values())


def test_attempts_are_limited() -> None:
    bench = Bench([member(0), member(1)], Settings(patience=Patience(attempts=1)))
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    fail_by_status(bench.busy())
    assert status(transport) == 502


def test_without_retry_budget_the_first_failure_is_final(bench: Bench) -> None:
    while bench.plane.retries.take(bench.clock()):
        pass
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    fail_by_status(bench.busy())
    assert status(transport) == 502
    bench.assert_empty()


def test_the_only_replica_is_asked_again_after_a_transient_failure() -> None:
    bench = Bench([member(0)])
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    fail_by_status(bench.busy())
    bench.busy().answer(b"{}")
    assert status(transport) == 200


def test_silence_before_the_first_event_is_sent_elsewhere(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    first = bench.busy()
    first.open_stream()
    bench.clock.now += Patience().first_event_s + 1
    for exchange in list(bench.plane.exchanges):
        exchange.check(bench.clock())
    assert first.transport.closed
    second = bench.busy()
    second.open_stream()
    second.events(event("a"), DONE, last=True)
    assert dechunked(transport)[1]


def test_an_answer_that_does_not_stream_has_a_total_timeout_only(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    engine = bench.busy()
    for now in (Patience().first_event_s + 1, Patience().total_s - 1):
        for exchange in list(bench.plane.exchanges):
            exchange.check(1000.0 + now)
    assert transport.sent == b""
    bench.clock.now += Patience().total_s + 1
    for exchange in list(bench.plane.exchanges):
        exchange.check(bench.clock())
    assert (status(transport), error(transport)["code"]) == (504, "upstream_timeout")
    assert engine.transport.closed
    bench.assert_empty()


def test_three_failures_open_the_breaker(bench: Bench) -> None:
    replica = next(iter(bench.service.replicas.values()))
    for _ in range(3):
        replica.failed(bench.clock())
    assert replica.facts.closed_until > bench.clock()
    for _ in range(20):
        connection, _ = bench.connect()
        connection.data_received(post(CHAT))
        engine = bench.busy()
        assert engine.replica is not replica
        engine.answer(b"{}")


def test_an_error_event_that_blames_the_request_passes_as_it_is(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    engine = bench.busy()
    engine.open_stream()
    bad = b'data: {"error":{"message":"too long","code":400}}\n\n'
    engine.events(bad, DONE, last=True)
    assert dechunked(transport) == (bad, True)
    bench.assert_empty()


# -- failures after the first event


def die(engine: Any) -> None:
    engine.events(event("half")[:12])
    engine.die()


def end_early(engine: Any) -> None:
    engine.events(event("half")[:12], last=True)


BREAKS = [
    (die, "cut"),
    (end_early, "cut"),
    (lambda engine: engine.events(b'data: {"choices":[{"finish_reason":"abort"}]}\n\n', DONE, last=True), "abort"),
    (lambda engine: engine.events(b'data: {"error":{"message":"boom"}}\n\n', DONE, last=True), "error"),
    (lambda engine: engine.say(b"not a chunk\r\n"), "protocol"),
]


@pytest.mark.parametrize(("break_", "cause"), BREAKS)
def test_a_broken_stream_ends_with_an_error_event_and_never_with_done(bench: Bench, break_: Any, cause: str) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    engine = bench.busy()
    engine.open_stream()
    engine.events(event("a"))
    break_(engine)
    body, ended = dechunked(transport)
    assert body.startswith(event("a") + b"data: ")
    broken = json.loads(body[len(event("a")) + 6 :])
    assert broken["error"]["code"] == "upstream_failed"
    assert b"[DONE]" not in body
    assert ended
    assert transport.half_closed
    bench.assert_empty()
    bench.refresh()
    assert bench.plane.metrics.broken_streams["ns/s", cause] == 1


def test_silence_mid_stream_ends_it(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    engine = bench.busy()
    engine.open_stream()
    engine.events(event("a"))
    bench.clock.now += Patience().event_s + 1
    for exchange in list(bench.plane.exchanges):
        exchange.check(bench.clock())
    assert b'"code":"upstream_timeout"' in dechunked(transport)[0]
    assert engine.transport.closed
    bench.assert_empty()


@pytest.mark.parametrize("how", ["die", "silence"])
def test_a_stream_that_said_done_is_complete_however_it_ends(bench: Bench, how: str) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    engine = bench.busy()
    engine.open_stream()
    engine.events(event("a"), DONE)
    if how == "die":
        engine.die()
    else:
        bench.clock.now += Patience().event_s + 1
        for exchange in list(bench.plane.exchanges):
            exchange.check(bench.clock())
    assert dechunked(transport) == (event("a") + DONE, True)
    bench.assert_empty()


@pytest.mark.parametrize("body", [CHAT, STREAM])
@pytest.mark.parametrize("started", [False, True])
def test_client_gone_cancels_upstream_at_once(bench: Bench, body: bytes, started: bool) -> None:
    connection, _ = bench.connect()
    connection.data_received(post(body))
    engine = bench.busy()
    if started and body is STREAM:
        engine.open_stream()
        engine.events(event("a"))
    connection.connection_lost(None)
    assert engine.transport.closed
    bench.assert_empty()
    bench.refresh()
    assert bench.plane.metrics.requests["ns/s", "499"] == 1


# -- drain, books, journal


def test_streams_on_a_replica_past_its_drain_deadline_end_or_move(bench: Bench) -> None:
    started, begun = bench.connect()
    started.data_received(post(STREAM))
    engine = bench.busy()
    engine.open_stream()
    engine.events(event("a"))
    draining = lease(engine.replica.member, state="draining", remaining_ms=2000)
    bench.view.hear(draining, bench.clock())
    bench.refresh()
    bench.fleet.check(bench.clock() + 1.9)
    assert bench.plane.exchanges
    bench.clock.now += 2.0
    bench.fleet.check(bench.clock())
    assert b'"code":"upstream_failed"' in dechunked(begun)[0]
    bench.assert_empty()


def test_journal_tells_why_and_what_came_out(bench: Bench) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    engine = bench.busy()
    number = int(header_of_request(engine.take()), 16)
    open_record = bench.plane.find(number)
    assert open_record is not None
    assert open_record.as_json()["actual"]["finish"] == "open"
    engine.open_stream()
    engine.events(event("a"))
    bench.clock.now += 2
    engine.events(USAGE, DONE, last=True)
    record = bench.plane.find(number)
    assert record is not None
    told = record.as_json()
    assert told["id"] == header(transport, "x-request-id")
    assert (told["service"], told["model"], told["path"], told["streams"]) == (
        "ns/s",
        "m",
        "/v1/chat/completions",
        True,
    )
    assert len(told["candidates"]) == 3
    assert told["picks"] == [{"replica": engine.replica.name, "reason": "random", "outcome": "complete"}]
    assert told["actual"] == {
        "promptTokens": 9,
        "cachedTokens": 4,
        "completionTokens": 2,
        "ttftSeconds": 0.0,
        "totalSeconds": 2.0,
        "status": 200,
        "finish": "complete",
    }
    assert "hi" not in json.dumps(told)
    assert bench.plane.find(number + 1) is None


def header_of_request(sent: bytes) -> bytes:
    return sent.partition(b"x-request-id: ")[2].partition(b"\r\n")[0]


def test_metrics_count_each_request_once(bench: Bench) -> None:
    for body, answer in ((CHAT, "200 OK"), (CHAT, "400 No")):
        connection, _ = bench.connect()
        connection.data_received(post(body))
        bench.busy().answer(b'{"usage":{"prompt_tokens":9,"completion_tokens":2}}', answer)
    connection, _ = bench.connect()
    connection.data_received(post(b"{"))
    bench.refresh()
    metrics = bench.plane.metrics
    assert dict(metrics.requests) == {("ns/s", "200"): 1, ("ns/s", "400"): 1, ("", "400"): 1}
    assert metrics.prompt_tokens["ns/s"] == 9
    assert metrics.errors == {"invalid_json": 1}


def test_a_long_prompt_is_expected_where_it_was_sent(bench: Bench) -> None:
    text = "".join(f"line {n} of a long document; " for n in range(200))
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}).encode()
    first, _ = bench.connect()
    first.data_received(post(body))
    engine = bench.busy()
    engine.open_stream()
    engine.events(event("a"), DONE, last=True)
    second, transport = bench.connect()
    second.data_received(post(body))
    assert bench.busy() is engine
    bench.busy().open_stream()
    engine.events(event("a"), DONE, last=True)
    assert header(transport, "x-roundhouse-reason") == "cache"
    assert int(header(transport, "x-roundhouse-predicted-cached-tokens") or 0) > 1000
    bench.assert_empty()


def test_history_routes_when_nothing_is_known_of_the_cache() -> None:
    bench = Bench([member(0), member(1)], leases=False)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 500}]}).encode()
    seen = set()
    for _ in range(6):
        connection, transport = bench.connect()
        connection.data_received(post(body))
        engine = bench.busy()
        seen.add(engine.replica.name)
        engine.answer(b"{}")
        bench.clock.now += 60
        assert header(transport, "x-roundhouse-reason") == "stale"
    assert len(seen) == 1


def test_books_lead_the_second_request_elsewhere(bench: Bench) -> None:
    bodies = [
        json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": c * 4000}]}) for c in "abc"
    ]
    used = set()
    for body in bodies:
        connection, _ = bench.connect()
        before = {name for name, engine in bench.engines.items() if engine.busy}
        connection.data_received(post(body.encode()))
        used |= {name for name, engine in bench.engines.items() if engine.busy} - before
    assert used == {"s-0", "s-1", "s-2"}


class FakePool:
    """An agent's: keeps what is sent to it."""

    made: "list[FakePool]" = []  # noqa: RUF012

    def __init__(self, address: str, port: int, **_: object) -> None:
        self.port = port
        self.host_header = b"agent"
        self.retired = False
        FakePool.made.append(self)

    def send(self, reader: Any, payload: bytes) -> None:
        self.reader, self.payload = reader, payload

    def retire(self) -> None:
        self.retired = True


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (b'{"v":1,"exact":true}', "exact"),
        (b'{"v":1,"exact":false,"reason":"x"}', "inexact"),
        (b'{"v":1,"exact":"no"}', "failed"),
        (b"[]", "failed"),
        (b"{", "failed"),
        (None, "failed"),
    ],
)
def test_one_request_in_ten_thousand_is_checked_by_the_agent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, result: str
) -> None:
    monkeypatch.setattr("roundhouse_gateway.spot_check.UpstreamPool", FakePool)
    bench.plane.check_every = 2
    FakePool.made = []
    while not FakePool.made:
        connection, _ = bench.connect()
        connection.data_received(post(CHAT))
        bench.busy().answer(b"{}")
    (agent,) = FakePool.made
    assert agent.port == 9090
    assert agent.payload.startswith(b"POST /check HTTP/1.1\r\n")
    sent = json.loads(agent.payload.partition(b"\r\n\r\n")[2])
    assert sent == {
        "rendered": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    }
    if answer is None:
        agent.reader.answer_failed(None, "refused")
    else:
        agent.reader.answer_head(AnswerHead(200, [(b"content-length", b"%d" % len(answer))], True))
        agent.reader.answer_data(answer, True)
    assert agent.retired
    assert bench.plane.metrics.spot_checks == {result: 1}
    assert not bench.plane._spot_checks


def test_an_agent_that_never_answers_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundhouse_gateway.spot_check.UpstreamPool", FakePool)
    bench.plane.check_every = 1
    connection, _ = bench.connect()
    connection.data_received(post(CHAT))
    bench.busy().answer(b"{}")
    bench.plane._check(bench.clock() + 31)
    assert bench.plane.metrics.spot_checks == {"failed": 1}


class BuggyDialect:
    """Breaks at every answer, or at every event from the second on."""

    control_fields: frozenset[str] = frozenset()

    def plain(self, block: bytes) -> bool:
        raise RuntimeError("bug")

    def mark(self, event: bytes) -> Mark:
        return Mark.DATA

    def usage(self, data: bytes) -> None:
        raise RuntimeError("bug")


def test_a_bug_in_reading_an_answer_is_an_error_and_leaves_no_booking(bench: Bench) -> None:
    for replica in bench.service.replicas.values():
        replica.dialect = BuggyDialect()
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    bench.busy().answer(b"{}")
    assert (status(transport), error(transport)["code"]) == (502, "upstream_failed")
    bench.assert_empty()


def test_a_bug_in_reading_an_event_breaks_the_stream_and_leaves_no_booking(bench: Bench) -> None:
    for replica in bench.service.replicas.values():
        replica.dialect = BuggyDialect()
    connection, transport = bench.connect()
    connection.data_received(post(STREAM))
    engine = bench.busy()
    engine.open_stream()
    engine.events(event("a"))
    engine.events(event("b"))
    body, ended = dechunked(transport)
    assert ended
    assert b'"error"' in body
    assert DONE not in body
    assert engine.transport.closed
    bench.assert_empty()


class BrokenFeed:
    """Raises when it is read."""

    def __init__(self) -> None:
        self.catalogue = None
        self.thrice = asyncio.Event()
        self._reads = 0

    @property
    def views(self) -> Any:
        self._reads += 1
        if self._reads == 3:
            self.thrice.set()
        raise RuntimeError("bug")


async def test_a_bug_in_one_tick_does_not_end_the_gateway(bench: Bench) -> None:
    bench.plane.pause_after_bug_s = 0.0
    feed = BrokenFeed()
    bench.fleet._feed = feed
    running = asyncio.create_task(bench.plane.run())
    async with asyncio.timeout(10):
        await feed.thrice.wait()
    assert not running.done()
    running.cancel()
