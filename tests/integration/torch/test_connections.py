"""Clients that leave, stall, pipeline or send rubbish, on raw sockets; afterwards nothing runs and no block is used."""

import json
import random
import socket
from typing import Any

import pytest

from tests.support.engine_server import EngineServer

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("torch-server")]
LONG: dict[str, Any] = {"prompt": "once upon a time", "max_tokens": 1900, "ignore_eos": True}


def request(path: str, body: Any) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data)


def connect(server: EngineServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        chunk = connection.recv(65536)
        assert chunk, data
        data += chunk
    return data


@pytest.fixture(autouse=True)
def _nothing_is_left(server: EngineServer) -> Any:
    yield
    server.wait_for_metric("num_requests_running", 0)
    server.wait_for_metric("num_requests_waiting", 0)
    server.wait_for_metric("kv_cache_usage_perc", 0)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_client_that_leaves_a_stream_frees_its_blocks(server: EngineServer, path: str) -> None:
    body = {**LONG, "messages": [{"role": "user", "content": "x"}], "stream": True}
    with connect(server) as connection:
        connection.sendall(request(path, body))
        read_until(connection, b"data: ")
        assert server.metric("num_requests_running") == 1
    server.wait_for_metric("num_requests_running", 0)


def test_a_client_that_leaves_before_a_whole_answer_frees_its_blocks(server: EngineServer) -> None:
    before = server.metric("generation_tokens_total")
    with connect(server) as connection:
        connection.sendall(request("/v1/completions", LONG))
        server.wait_for_metric("num_requests_running", 1)
    server.wait_for_metric("num_requests_running", 0)
    assert server.metric("generation_tokens_total") - before < LONG["max_tokens"]


def test_resets_and_half_sent_bodies_do_no_harm(server: EngineServer) -> None:
    whole = request("/v1/completions", {**LONG, "stream": True})
    for cut in (5, 40, len(whole) - 3):
        connection = connect(server)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close sends a reset
        connection.sendall(whole[:cut])
        connection.close()
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200


def test_two_pipelined_requests_are_answered_in_order(server: EngineServer) -> None:
    bodies = [{"prompt": "x", "max_tokens": count, "ignore_eos": True} for count in (2, 3)]
    with connect(server) as connection:
        connection.sendall(b"".join(request("/v1/completions", body) for body in bodies))
        data = read_until(connection, b'"completion_tokens":3')
    assert data.index(b'"completion_tokens":2') < data.index(b'"completion_tokens":3')


def test_a_chunked_body_is_read(server: EngineServer) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    with connect(server) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"
        )
        assert b" 200 OK" in read_until(connection, b"completion_tokens")


@pytest.mark.parametrize(
    "rubbish",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"\0" * 100],
    ids=["tls", "no version", "bad length", "zeros"],
)
def test_rubbish_gets_400_and_nothing_breaks(server: EngineServer, rubbish: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(rubbish + b"\r\n\r\n")
        assert b"400" in connection.recv(65536)
    assert server.get("/health") == b""


def test_a_client_that_reads_slowly_gets_everything(server: EngineServer) -> None:
    with connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request("/v1/completions", {**LONG, "max_tokens": 400, "stream": True, "stop": None}))
        server.wait_for_metric("num_requests_running", 0)
        data = read_until(connection, b"[DONE]")
    assert data.count(b"data: ") == 401


def test_a_storm_of_arrivals_and_departures_leaks_nothing(server: EngineServer) -> None:
    randomness = random.Random(4)
    open_connections: list[socket.socket] = []
    for index in range(120):
        connection = connect(server)
        prompt = "once upon a time " * randomness.randint(1, 30) + str(index)
        body = {**LONG, "prompt": prompt, "max_tokens": randomness.randint(1, 60), "stream": randomness.random() < 0.7}
        connection.sendall(request("/v1/completions", body))
        open_connections.append(connection)
        if len(open_connections) > 12:
            leaving = open_connections.pop(randomness.randrange(len(open_connections)))
            leaving.close()
    for connection in open_connections:
        connection.close()
    server.wait_for_metric("num_requests_running", 0)
    assert server.post("/reset_prefix_cache") == (200, {"success": True})
