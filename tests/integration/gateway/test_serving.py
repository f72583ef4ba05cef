"""What a client gets through real gateways from real simulated engines, good requests and bad ones."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.integration.gateway.raw_engine import RawEngine
from tests.integration.gateway.stack import Client, Process, Replica, Stack, chat, running_stack, until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway")]
FAST = ("--speedup", "20")
OPTIONS = ("--body-bytes", "100000", "--header-timeout", "1", "--body-timeout", "1")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("serving")
    with running_stack(folder, engines=3, gateways=2, sim=FAST, gateway=OPTIONS) as running:
        yield running
        for gateway in running.gateways:
            gateway.assert_empty()
        for replica in running.replicas:
            until(lambda r=replica: r.running() == 0, "engines to be idle")  # type: ignore[misc]


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    made = Client(stack.gateway.port)
    yield made
    made.close()


def sdk(stack: Stack, number: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=stack.gateways[number].url + "/v1", api_key="none", max_retries=0)


def test_openai_client_completes_streams_and_lists(stack: Stack) -> None:
    with sdk(stack) as api:
        assert [model.id for model in api.models.list()] == ["m"]
        assert api.models.retrieve("ns/s").id == "ns/s"
        said = api.chat.completions.create(model="m", max_tokens=6, messages=[{"role": "user", "content": "hi"}])
        assert said.model == "m"
        assert said.usage is not None
        assert said.usage.completion_tokens == 6
        with api.chat.completions.create(
            model="ns/s", max_tokens=6, stream=True, messages=[{"role": "user", "content": "hi"}]
        ) as stream:
            chunks = list(stream)
        assert {chunk.model for chunk in chunks} == {"ns/s"}
        assert chunks[-1].choices[0].finish_reason == "length"
        assert all(chunk.usage is None for chunk in chunks)
        text = api.completions.create(model="sim", prompt="once", max_tokens=4)
        assert text.choices[0].finish_reason == "length"


def test_openai_client_gets_usage_when_it_asks(stack: Stack) -> None:
    with (
        sdk(stack) as api,
        api.chat.completions.create(
            model="m",
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            messages=[{"role": "user", "content": "hi"}],
        ) as stream,
    ):
        last = list(stream)[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 5


def test_openai_client_raises_the_right_errors(stack: Stack) -> None:
    with sdk(stack) as api:
        with pytest.raises(openai.NotFoundError) as unknown:
            api.chat.completions.create(model="nope", messages=[])
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as control:
            api.chat.completions.create(model="m", messages=[], extra_body={"priority": 3})
        assert (control.value.code, control.value.param) == ("control_field", "priority")


def test_usage_is_learned_though_the_client_did_not_ask(stack: Stack, client: Client) -> None:
    client.post(chat("x" * 100, stream=True))
    code, headers, body = client.answer()
    assert code == 200
    assert body.endswith(b"data: [DONE]\n\n")
    assert b'"usage":{' not in body
    record = stack.gateway.record(headers["x-request-id"])
    assert record["actual"]["completionTokens"] == 8
    assert record["actual"]["promptTokens"] > 100
    assert record["picks"][0]["outcome"] == "complete"
    assert headers["x-roundhouse-replica"] == record["picks"][0]["replica"]


def test_a_prompt_is_expected_on_its_replica_by_both_gateways(stack: Stack) -> None:
    document = "".join(f"Paragraph {n} of a text that is long enough to matter. " for n in range(60))
    first, second = Client(stack.gateways[0].port), Client(stack.gateways[1].port)
    for other in range(12):  # Until both know what prefill costs here, a warm replica need not be the better one.
        first.post(chat(f"{other} is what this begins with. {document}", stream=True))
        assert first.answer()[0] == 200
    first.post(chat(document, stream=True))
    _, headers = first.head()
    until(
        lambda: any(r["requests"] for r in stack.gateways[1].replicas().values()) or first.chunk() == b"",
        "the other gateway to hear of it",
    )
    second.post(chat(document, stream=True))
    _, also, _ = second.answer()
    assert also["x-roundhouse-replica"] == headers["x-roundhouse-replica"]
    assert int(also["x-roundhouse-predicted-cached-tokens"]) > 100
    first.close()
    second.close()


def test_books_of_one_gateway_show_in_the_other(stack: Stack) -> None:
    client = Client(stack.gateways[0].port)
    client.post(chat("books", stream=True, max_tokens=100_000, ignore_eos=True))
    _, headers = client.head()
    name = headers["x-roundhouse-replica"]
    until(lambda: stack.gateways[1].replicas()[name]["requests"] == 1, "the booking to arrive")
    client.close()
    until(lambda: stack.gateways[1].replicas()[name]["requests"] == 0, "the booking to go")


def test_pipelined_and_chunked_requests(client: Client) -> None:
    body = json.dumps(chat()).encode()
    chunked = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:])
    client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n" + chunked
        + b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n"
    )  # fmt: skip
    client.post(chat(stream=True))
    answers = [client.answer() for _ in range(3)]
    assert [code for code, _, _ in answers] == [200, 200, 200]
    assert b"chat.completion" in answers[0][2]
    assert b'"object":"list"' in answers[1][2]
    assert answers[2][2].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "expected", "code"),
    [
        (b"{oops", 400, "invalid_json"),
        (b'{"model":["m"]}', 400, "invalid_request"),
        (b'{"messages":[]}', 400, "invalid_request"),
        (b'{"model":"who"}', 404, "model_not_found"),
    ],
)
def test_bad_bodies_leave_the_connection_usable(client: Client, body: bytes, expected: int, code: str) -> None:
    client.post(body)
    status, _, error = client.answer()
    assert (status, json.loads(error)["error"]["code"]) == (expected, code)
    client.post(chat())
    assert client.answer()[0] == 200


def test_wrong_types_inside_the_body_are_the_engines_4xx(client: Client) -> None:
    client.post({"model": "m", "messages": "not a list"})
    code, headers, body = client.answer()
    assert 400 <= code < 500
    assert "x-roundhouse-replica" in headers
    assert json.loads(body)


def test_a_body_over_the_limit_is_answered_though_the_client_keeps_sending(client: Client) -> None:
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 5000000\r\n\r\n")
    try:
        client.send(b"x" * 2_000_000)
    except OSError:
        pytest.fail("the connection was reset before the answer could be read")
    code, headers, body = client.answer()
    assert (code, json.loads(body)["error"]["code"]) == (413, "body_too_large")
    assert headers["connection"] == "close"


def test_a_header_flood_is_answered_and_cut(client: Client) -> None:
    client.send(b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: %b\r\n" % (n, b"y" * 100) for n in range(1000)))
    code, _, body = client.answer()
    assert (code, json.loads(body)["error"]["code"]) == (431, "headers_too_large")
    assert client.at_end()


@pytest.mark.parametrize("sent", [b"GET /v1/mod", b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"])
def test_a_slow_client_is_told_and_cut(client: Client, sent: bytes) -> None:
    client.send(sent)
    code, _, body = client.answer()
    assert (code, json.loads(body)["error"]["code"]) == (408, "invalid_request")
    assert client.at_end()


def test_a_client_that_goes_away_mid_stream_stops_the_engine(stack: Stack, client: Client) -> None:
    client.post(chat("gone", stream=True, max_tokens=100_000, ignore_eos=True))
    _, headers = client.head()
    client.chunk()
    (replica,) = [r for r in stack.replicas if r.name == headers["x-roundhouse-replica"]]
    assert replica.running() == 1
    client.close()
    until(lambda: replica.running() == 0, "the engine to be idle")
    until(lambda: stack.gateway.metric("requests_total", code="499") >= 1, "the request to be counted")


def test_a_client_that_reads_slowly_gets_everything(client: Client) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.post(chat("slow reader", stream=True, max_tokens=3000, ignore_eos=True))
    code, headers = client.head()
    assert code == 200
    body = client.body(headers)
    assert body.endswith(b"data: [DONE]\n\n")
    assert body.count(b"data: ") >= 3000


def test_metrics_page_has_bounded_labels(stack: Stack, client: Client) -> None:
    client.post({"model": "some-unknown-model-name"})
    client.answer()
    page = until(lambda: stack.gateway.metric("requests_total", code="404") and stack.gateway, "the count")
    assert page.metric("errors_total", code="model_not_found") >= 1
    assert page.metric("picks_total") >= 1
    assert page.metric("redis_healthy") == 1


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[tuple[Stack, RawEngine]]:
    with running_stack(tmp_path, engines=0) as stack:
        engine = RawEngine()
        stack.members.append(Replica(0, Process([], tmp_path / "none"), engine.port))
        until(lambda: stack.gateway.replicas().get("s-0", {}).get("state") == "ready", "the engine to be known")
        yield stack, engine
        engine.close()


def exchange(stack: Stack, engine: RawEngine, body: bytes, answer: bytes) -> tuple[bytes, dict[str, str], bytes]:
    """(body that the engine got, headers and body that the client got)."""
    engine.answer = answer
    client = Client(stack.gateway.port)
    client.post(body)
    code, headers, got = client.answer()
    client.close()
    assert code == int(answer[9:12])
    return engine.requests[-1].partition(b"\r\n\r\n")[2], headers, got


def json_answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def sse(*events: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunks
        + b"0\r\n\r\n"
    )


ODD = b'{ "model" : "sim",\r\n "messages":[{"content":"\\u00e9\xc3\xa9 \\/"}],"temperature":1.0e0,"new":[1.50,{}]}'
ODD_ANSWER = b'{"id": "x", "model": "sim", "choices": [], "big": 12345678901234567890123, "f": 1.0e0}'
EVENT = b'data: {"id":"x", "model":"sim","choices":[{"text":"\xc3\xa9 \\"model\\":\\"sim\\""}], "odd" : 1.50}\n\n'
COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"model":"sim","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n'


def test_bytes_are_identical_both_ways_without_a_splice(raw: tuple[Stack, RawEngine]) -> None:
    sent, _, got = exchange(*raw, ODD, json_answer(ODD_ANSWER))
    assert (sent, got) == (ODD, ODD_ANSWER)
    asking = b'{"model":"sim","stream":true,"stream_options":{"include_usage":true},"messages":[]}'
    sent, _, got = exchange(*raw, asking, sse(COMMENT, EVENT, COMMENT, EVENT + EVENT, USAGE, DONE))
    assert (sent, got) == (asking, COMMENT + EVENT + COMMENT + EVENT + EVENT + USAGE + DONE)
    sent, _, got = exchange(*raw, ODD, json_answer(b'{"detail":"verbatim"}', "422 No"))
    assert (sent, got) == (ODD, b'{"detail":"verbatim"}')


def test_bytes_are_identical_but_for_the_documented_splices(raw: tuple[Stack, RawEngine]) -> None:
    body = b'{ "model" : "m", "stream":true, "messages":[ ] }'
    sent, _, got = exchange(*raw, body, sse(EVENT, USAGE, DONE))
    assert sent == b'{"stream_options":{"include_usage":true}, "model" : "sim", "stream":true, "messages":[ ] }'
    assert got == EVENT.replace(b'"model":"sim",', b'"model":"m",', 1) + DONE
    sent, _, got = exchange(*raw, ODD.replace(b'"sim"', b'"m"'), json_answer(ODD_ANSWER))
    assert (sent, got) == (ODD, ODD_ANSWER.replace(b'"sim"', b'"m"'))


def test_ambiguous_bodies_are_not_touched(raw: tuple[Stack, RawEngine]) -> None:
    body = b'{"model":"m","model":"m","stream":true,"messages":[]}'
    sent, _, _ = exchange(*raw, body, sse(EVENT, DONE))
    assert sent == body


def test_an_engine_that_closes_after_its_answer_is_understood(raw: tuple[Stack, RawEngine]) -> None:
    stack, engine = raw
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    for _ in range(3):
        _, headers, got = exchange(stack, engine, ODD, answer)
        assert got == b"{}"
        assert "connection" not in headers
