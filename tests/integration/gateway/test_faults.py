"""Engines, Valkey and gateways that die, hang or lie: what can be saved is saved, and nothing is leaked."""

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration.gateway.stack import (
    INSTALLATION,
    Client,
    Replica,
    Stack,
    chat,
    listening,
    running_stack,
    status,
    until,
)

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway")]
SIM = ("--speedup", "20")
IMPATIENT = ("--first-event", "1", "--event", "1.5", "--connect", "0.5", "--total", "8")
LONG = {"stream": True, "max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("faults")
    with running_stack(folder, engines=3, gateways=2, sim=SIM, gateway=IMPATIENT) as running:
        yield running


@pytest.fixture
def stack(shared: Stack) -> Stack:
    shared.heal()
    return shared


def ask(stack: Stack, number: int = 0, **fields: Any) -> tuple[int, dict[str, str], bytes]:
    client = Client(stack.gateways[number].port)
    try:
        client.post(chat(f"question {random.random()}", **fields))
        return client.answer()
    finally:
        client.close()


def events(body: bytes) -> list[bytes]:
    return [event for event in body.split(b"\n\n") if event]


def error_of(body: bytes) -> str | None:
    """Code of the error event that ends a stream; None when it does not end so."""
    last = events(body)[-1]
    return json.loads(last[6:])["error"]["code"] if last.startswith(b'data: {"error"') else None


def assert_all_empty(stack: Stack) -> None:
    for gateway in stack.gateways:
        gateway.assert_empty()
        until(lambda g=gateway: g.metric("books_open") == 0, "all books to be empty")  # type: ignore[misc]


def open_streams(stack: Stack, count: int) -> list[tuple[Client, str]]:
    """Running streams with the names of their replicas."""
    clients = [Client(stack.gateways[n % len(stack.gateways)].port) for n in range(count)]
    for number, client in enumerate(clients):
        client.post(chat(f"stream {number} " * (1 + number % 40), **LONG))
    opened = []
    for client in clients:
        code, headers = client.head()
        assert code == 200
        opened.append((client, headers["x-roundhouse-replica"]))
    return opened


def test_an_engine_killed_under_load_breaks_only_its_own_streams(stack: Stack) -> None:
    opened = open_streams(stack, 20)
    used = Counter(name for _, name in opened)
    assert len(used) >= 2
    (victim,) = [replica for replica in stack.replicas if replica.name == used.most_common()[0][0]]
    victim.process.kill()
    for client, name in opened:
        body = client.body({})
        if name == victim.name:
            assert error_of(body) == "upstream_failed"
            assert b"[DONE]" not in body
        else:
            assert body.endswith(b"data: [DONE]\n\n")
        client.close()
    for number in range(12):
        code, headers, _ = ask(stack, number % 2)
        assert code == 200
        assert headers["x-roundhouse-replica"] != victim.name
    assert_all_empty(stack)


def test_a_replica_that_comes_back_is_used_again(stack: Stack) -> None:
    victim = stack.replicas[0]
    victim.process.kill()
    for _ in range(8):
        assert ask(stack)[0] == 200
    victim.epoch += 1
    victim.start()
    until(lambda: ask(stack)[1]["x-roundhouse-replica"] == victim.name, "the replica to be used")


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"fault": "refuse"}, None),
        ({"fault": "hang"}, "silence"),
        ({"fault": "silence"}, "silence"),
        ({"fault": "status", "status": 500}, "status"),
        ({"fault": "status", "status": 503}, "busy"),
        ({"fault": "reset", "after_events": 0}, "cut"),
        ({"fault": "abort", "after_events": 0}, None),
        ({"fault": "error", "after_events": 0}, "error"),
        ({"fault": "crash"}, None),
    ],
)
def test_a_fault_before_the_first_event_is_invisible(stack: Stack, fault: dict[str, Any], cause: str | None) -> None:
    for replica in stack.replicas[:2]:
        arm(replica, **fault)
    for _ in range(12):
        code, _, body = ask(stack, stream=True)
        assert code == 200
        assert body.endswith(b"data: [DONE]\n\n"), body[-300:]
    if cause is not None:
        until(lambda: stack.gateway.metric("retries_total", cause=cause) >= 1, "the retry to be counted")
    assert_all_empty(stack)


def arm(replica: Replica, **fault: Any) -> None:
    """A crash answers nothing, so what is asked for is all that counts."""
    try:
        replica.fault(**fault)
    except OSError:
        assert fault["fault"] == "crash"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"fault": "reset", "after_events": 5}, "upstream_failed"),
        ({"fault": "abort", "after_events": 5}, "upstream_failed"),
        ({"fault": "error", "after_events": 5}, "upstream_failed"),
        ({"fault": "crash", "after_events": 5}, "upstream_failed"),
    ],
)
def test_a_fault_mid_stream_ends_with_an_error_event(stack: Stack, fault: dict[str, Any], code: str) -> None:
    for replica in stack.replicas:
        replica.fault(**fault)
    status_, _, body = ask(stack, stream=True, max_tokens=50, ignore_eos=True)
    assert status_ == 200
    assert error_of(body) == code
    assert b"[DONE]" not in body
    assert len(events(body)) >= 5
    assert_all_empty(stack)


def test_an_engine_that_stops_mid_stream_is_noticed(stack: Stack) -> None:
    client = Client(stack.gateway.port)
    client.post(chat("stop", **LONG))
    _, headers = client.head()
    client.chunk()
    (victim,) = [r for r in stack.replicas if r.name == headers["x-roundhouse-replica"]]
    victim.process.signal(signal.SIGSTOP)
    body = client.body(headers)
    assert error_of(body) == "upstream_timeout"
    client.close()
    for _ in range(6):
        code, _, answer = ask(stack, stream=True)
        assert code == 200
        assert answer.endswith(b"data: [DONE]\n\n")
    victim.process.signal(signal.SIGCONT)
    assert_all_empty(stack)


def test_everything_failing_is_an_error_with_a_code(stack: Stack) -> None:
    for replica in stack.replicas:
        replica.process.kill()
    code, _, body = ask(stack)
    assert (code, json.loads(body)["error"]["code"]) == (502, "upstream_failed")
    assert_all_empty(stack)


def test_a_draining_replica_gets_nothing_new_and_its_streams_end_at_the_deadline(stack: Stack) -> None:
    client = Client(stack.gateway.port)
    client.post(chat("drain", **{**LONG, "max_tokens": 100_000}))
    _, headers = client.head()
    (victim,) = [r for r in stack.replicas if r.name == headers["x-roundhouse-replica"]]
    deadline = time.monotonic() + 3
    victim.lease = {"state": "draining", "remaining_ms": 3000}
    until(lambda: stack.gateway.replicas()[victim.name]["state"] == "draining", "the drain to be heard")
    for _ in range(6):
        assert ask(stack)[1]["x-roundhouse-replica"] != victim.name
    while (left := round((deadline - time.monotonic()) * 1000)) > 0:
        victim.lease = {"state": "draining", "remaining_ms": left}
        client.chunk()
    victim.lease = {"state": "draining", "remaining_ms": 0}
    assert error_of(client.body(headers)) == "upstream_failed"
    client.close()
    assert_all_empty(stack)


def test_a_member_that_leaves_the_catalogue_gets_nothing_new_but_finishes(stack: Stack) -> None:
    client = Client(stack.gateway.port)
    client.post(chat("leave", **LONG))
    _, headers = client.head()
    stack.members = [r for r in stack.members if r.name != headers["x-roundhouse-replica"]]
    until(lambda: len(stack.gateway.replicas()) == 2, "the member to be gone")
    assert client.body(headers).endswith(b"data: [DONE]\n\n")
    client.close()
    assert_all_empty(stack)


def test_a_lease_that_stops_makes_a_replica_stale_but_not_gone(stack: Stack) -> None:
    silent = stack.replicas[0]
    until(lambda: stack.gateway.metric("redis_settled") == 1, "Redis to be settled")
    silent.silent = True
    until(lambda: stack.gateway.replicas()[silent.name]["stale"], "the replica to be stale")
    for _ in range(6):
        assert ask(stack)[1]["x-roundhouse-replica"] != silent.name
    for replica in stack.replicas[1:]:
        replica.process.kill()
    code, headers, _ = ask(stack)
    assert (code, headers["x-roundhouse-replica"]) == (200, silent.name)


def break_by_kill(stack: Stack) -> None:
    stack.valkey.kill()


def break_by_stop(stack: Stack) -> None:
    stack.valkey.signal(signal.SIGSTOP)


def mend_by_start(stack: Stack) -> None:
    stack.start_valkey()


def mend_by_cont(stack: Stack) -> None:
    stack.valkey.signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("break_", "mend"), [(break_by_kill, mend_by_start), (break_by_stop, mend_by_cont)], ids=["killed", "stopped"]
)
def test_valkey_gone_or_hung_is_not_noticed_by_clients(
    stack: Stack, break_: Callable[[Stack], None], mend: Callable[[Stack], None]
) -> None:
    opened = open_streams(stack, 4)
    break_(stack)
    until(lambda: stack.gateway.metric("redis_healthy") == 0, "the loss to be noticed")
    for number in range(20):
        code, headers, body = ask(stack, number % 2, stream=number % 3 == 0)
        assert code == 200, body
        assert headers["x-roundhouse-reason"] != "stale"
    for client, _ in opened:
        assert client.body({}).endswith(b"data: [DONE]\n\n")
        client.close()
    assert all(status(g.admin, "/readyz") == 200 for g in stack.gateways)
    mend(stack)
    until(lambda: stack.gateway.metric("redis_healthy") == 1, "Redis to be back")
    assert ask(stack)[0] == 200
    assert_all_empty(stack)
    client = Client(stack.gateways[0].port)
    client.post(chat("after", **{**LONG, "max_tokens": 100_000}))
    _, headers = client.head()
    name = headers["x-roundhouse-replica"]
    until(lambda: stack.gateways[1].replicas()[name]["requests"] == 1, "books to be shared again")
    client.close()
    assert_all_empty(stack)


def test_garbage_in_redis_is_counted_and_harms_nobody(stack: Stack) -> None:
    names = INSTALLATION.service("ns", "s")
    with redis.Redis(port=stack.valkey_port) as valkey:
        for channel in (names.lease_channel, names.books_channel, INSTALLATION.catalogue_channel):
            for garbage in (b"", b"\xff" * 24, b"{}", b"\x63" + bytes(100)):
                valkey.publish(channel, garbage)
        valkey.xadd(names.kv_log, {"b": b"garbage"})
        valkey.xadd(names.kv_log, {"other": b""})
    for what in ("lease", "books_message", "kv_batch"):
        until(lambda what=what: stack.gateway.metric("wire_errors_total", what=what) >= 1, what)  # type: ignore[misc]
    for _ in range(4):
        code, headers, _ = ask(stack)
        assert code == 200
        assert headers["x-roundhouse-reason"] != "stale"


def test_a_gateway_started_while_valkey_is_away_serves_from_its_file(stack: Stack) -> None:
    gateway = stack.gateway
    gateway.process.signal(signal.SIGTERM)
    assert gateway.process.wait() == 0
    stack.valkey.kill()
    gateway.start()
    gateway.wait_ready()
    assert ask(stack)[0] == 200


def test_a_gateway_without_any_catalogue_is_alive_not_ready_and_says_503(tmp_path: Path) -> None:
    with running_stack(tmp_path, engines=0, gateways=1) as stack:
        gateway = stack.gateway
        gateway.process.kill()
        stack.valkey.kill()
        (tmp_path / "catalogue-0.json").unlink(missing_ok=True)
        gateway.start()
        until(lambda: status(gateway.admin, "/healthz") == 200, "the gateway to be alive")
        assert status(gateway.admin, "/readyz") == 503
        code, headers, body = ask(stack)
        assert (code, json.loads(body)["error"]["code"]) == (503, "no_replica")
        assert "retry-after" in headers
        assert status(gateway.port, "/v1/models") == 503


def test_a_killed_gateways_bookings_go_within_seconds(stack: Stack) -> None:
    opened = open_streams(stack, 6)
    until(lambda: stack.gateways[1].metric("books_open") == 6, "all bookings to be known")
    stack.gateways[0].process.kill()
    for number, (client, _) in enumerate(opened):
        if number % 2:
            assert client.body({}).endswith(b"data: [DONE]\n\n")
        client.close()
    until(lambda: stack.gateways[1].metric("books_open") == 0, "the dead gateway's books to go")
    stack.gateways[0].start()
    stack.gateways[0].wait_ready()
    assert ask(stack)[0] == 200
    assert_all_empty(stack)


def test_sigterm_lets_streams_finish_and_leaves_no_booking(stack: Stack) -> None:
    gateway = stack.gateway
    client = Client(gateway.port)
    client.post(chat("finish", **{**LONG, "max_tokens": 1000}))
    _, headers = client.head()
    gateway.process.signal(signal.SIGTERM)
    until(lambda: not listening(gateway.port), "the gateway to stop accepting")
    assert status(gateway.admin, "/readyz") == 503
    assert client.body(headers).endswith(b"data: [DONE]\n\n")
    assert client.at_end()
    client.close()
    assert gateway.process.wait() == 0
    assert stack.gateways[1].metric("books_open") == 0


def test_the_drain_timeout_ends_streams_with_an_error_event(tmp_path: Path) -> None:
    with running_stack(tmp_path, engines=1, sim=SIM, gateway=("--drain-timeout", "0.5")) as stack:
        clients = [Client(stack.gateway.port) for _ in range(3)]
        clients[0].post(chat("stream", **{**LONG, "max_tokens": 100_000}))
        clients[1].post(chat("whole", max_tokens=100_000, ignore_eos=True))
        _, headers = clients[0].head()
        until(lambda: stack.gateway.metric("exchanges") == 2, "both to be in flight")
        stack.gateway.process.signal(signal.SIGTERM)
        assert error_of(clients[0].body(headers)) == "shutting_down"
        code, _, body = clients[1].answer()
        assert (code, json.loads(body)["error"]["code"]) == (503, "shutting_down")
        assert stack.gateway.process.wait() == 0
        until(lambda: stack.replicas[0].running() == 0, "the engine to be idle")
        for client in clients:
            client.close()


def test_a_second_signal_ends_the_drain(stack: Stack) -> None:
    (client, _) = open_streams(stack, 1)[0]
    stack.gateway.process.signal(signal.SIGTERM)
    until(lambda: not listening(stack.gateway.port), "the gateway to drain")
    stack.gateway.process.signal(signal.SIGTERM)
    assert error_of(client.body({})) == "shutting_down"
    assert stack.gateway.process.wait() == 0
    client.close()


def test_a_busy_port_is_a_clear_line(stack: Stack) -> None:
    second = stack.gateway.process
    twin = type(second)(second.argv, stack.folder / "twin.log")
    twin.start()
    assert twin.wait() == 2
    assert f"cannot listen on 127.0.0.1:{stack.gateway.port}" in (stack.folder / "twin.log").read_text()


def test_after_a_storm_nothing_is_left(stack: Stack) -> None:
    stop = threading.Event()
    outcomes: Counter[str] = Counter()

    def one(number: int) -> None:
        dice = random.Random(number)
        while not stop.is_set():
            client = Client(stack.gateways[number % 2].port)
            try:
                streams = dice.random() < 0.7
                client.post(chat("storm " * dice.randrange(1, 300), stream=streams, max_tokens=dice.randrange(1, 200)))
                if dice.random() < 0.2:
                    outcomes["gone"] += 1
                    continue
                code, _, body = client.answer()
                if not streams or code != 200:
                    outcomes[str(code)] += 1
                elif body.endswith(b"data: [DONE]\n\n"):
                    outcomes["done"] += 1
                else:
                    assert error_of(body) in ("upstream_failed", "upstream_timeout")
                    assert b"[DONE]" not in body
                    outcomes["broken"] += 1
            finally:
                client.close()

    faults: list[dict[str, Any]] = [
        {"fault": "reset", "after_events": 3, "count": 3},
        {"fault": "status", "status": 500, "count": 3},
        {"fault": "abort", "after_events": 2, "count": 3},
        {"fault": "hang", "count": 2},
        {"fault": "error", "after_events": 1, "count": 3},
        {"fault": "refuse", "count": 3},
    ]
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(one, number) for number in range(16)]
        try:
            for number, fault in enumerate(faults):
                stack.replicas[number % 2].fault(**fault)
                if number == 2:
                    stack.valkey.kill()
                if number == 4:
                    stack.start_valkey()
                before = sum(outcomes.values())
                until(lambda before=before: sum(outcomes.values()) > before + 40, "requests to go on")  # type: ignore[misc]
        finally:
            stop.set()
        for each in running:
            each.result()
    assert outcomes["done"] > 50
    assert set(outcomes) <= {"done", "broken", "gone", "200", "502", "503", "504"}
    for replica in stack.replicas:
        replica.faults_off()
        until(lambda r=replica: r.running() == 0, "engines to be idle")  # type: ignore[misc]
    assert_all_empty(stack)
