"""The admin API's pages, asked through the real app on a second loop while the data plane's loop runs."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from roundhouse_gateway.admin import HEARTBEAT_S, LoopDoor, build_app
from roundhouse_gateway.admin_views import catalogue_json
from roundhouse_gateway.metrics import Gauge

from tests.unit.roundhouse_gateway.fakes import Bench, member, post


async def get(app: FastAPI, path: str) -> tuple[int, bytes]:
    """One GET through ASGI."""
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "scheme": "http",
        "server": ("t", 80),
        "client": ("t", 1),
    }
    await app(scope, receive, send)  # type: ignore[arg-type]
    body = b"".join(m["body"] for m in sent[1:])  # type: ignore[misc]
    status = sent[0]["status"]
    assert isinstance(status, int)
    return status, body


@contextmanager
def plane_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


@pytest.fixture
def bench() -> Bench:
    return Bench([member(0), member(1)])


@pytest.fixture
def app(bench: Bench) -> Iterator[FastAPI]:
    with plane_loop() as loop:
        yield build_app(
            bench.plane,
            LoopDoor(loop),
            catalogue=lambda: catalogue_json(bench.feed.catalogue, 1.5),
            gauges=lambda: [Gauge("extra", "An extra one.", (), [((), 2.0)])],
        )


async def test_healthz_is_the_heartbeat(bench: Bench, app: FastAPI) -> None:
    bench.plane.heartbeat = bench.clock()
    assert (await get(app, "/healthz"))[0] == 200
    bench.clock.now += HEARTBEAT_S + 0.1
    assert (await get(app, "/healthz"))[0] == 503


async def test_readyz_says_why_not(bench: Bench, app: FastAPI) -> None:
    bench.feed.catalogue = None
    assert await get(app, "/readyz") == (503, b'{"v":1,"ready":false,"message":"no catalogue yet"}')
    bench.plane.draining = True
    assert b"shutting down" in (await get(app, "/readyz"))[1]


async def test_replicas_page_has_every_field_of_the_contract(app: FastAPI) -> None:
    status, body = await get(app, "/admin/replicas")
    page = json.loads(body)
    assert (status, page["v"], page["gateway"]) == (200, 1, "abcdef0100000001")
    (service,) = page["services"]
    assert (service["service"], service["servedNames"]) == ("ns/s", ["m", "alias"])
    assert set(service["replicas"][0]) == {
        "name", "replicaUid", "podUid", "address", "state", "stale", "trusted", "epoch", "keys", "exact", "reason",
        "prefillSeconds", "contextTokens", "requests", "speed", "waiting", "running", "kvUsed",
    }  # fmt: skip


async def test_requests_page(bench: Bench, app: FastAPI) -> None:
    connection, transport = bench.connect()
    connection.data_received(post(b'{"model":"m","messages":[]}'))
    bench.busy().answer(b'{"usage":{"prompt_tokens":3,"completion_tokens":1}}')
    request_id = transport.sent.partition(b"x-request-id: ")[2][:16].decode()
    status, body = await get(app, f"/admin/requests/{request_id}")
    record = json.loads(body)
    assert status == 200
    assert set(record) == {
        "v", "id", "service", "model", "started", "path", "streams", "promptBytes", "candidates", "picks", "actual",
    }  # fmt: skip
    assert set(record["candidates"][0]) == {
        "replica", "matchedBytes", "predictedCachedTokens", "bookedSeconds", "ownSeconds", "contextSeconds",
        "totalSeconds", "note",
    }  # fmt: skip
    assert record["actual"]["promptTokens"] == 3
    for unknown in ("abcdef0100009999", "zz", "A" * 16):
        assert (await get(app, f"/admin/requests/{unknown}"))[0] == 404


async def test_catalogue_page(bench: Bench, app: FastAPI) -> None:
    page = json.loads((await get(app, "/admin/catalogue"))[1])
    assert (page["v"], page["term"], page["version"], page["ageSeconds"]) == (1, 1, 1, 1.5)
    assert page["services"][0]["servedNames"] == ["m", "alias"]
    assert page["services"][0]["members"][0]["replicaUid"] == member(0).replica_uid
    assert catalogue_json(None, None)["term"] is None


async def test_metrics_page_can_be_parsed(bench: Bench, app: FastAPI) -> None:
    connection, _ = bench.connect()
    connection.data_received(post(b'{"model":"m","stream":true,"messages":[]}'))
    engine = bench.busy()
    engine.open_stream()
    engine.events(b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n", last=True)
    bench.refresh()
    status, body = await get(app, "/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    requests = families["roundhouse_gateway_requests"].samples
    assert [(s.labels, s.value) for s in requests] == [({"service": "ns/s", "code": "200"}, 1.0)]
    assert families["roundhouse_gateway_time_to_first_event_seconds"].type == "histogram"
    assert families["roundhouse_gateway_in_flight"].samples[0].value == 0
    assert families["roundhouse_gateway_extra"].samples[0].value == 2


async def test_a_stuck_data_plane_is_503_not_a_hang(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundhouse_gateway.admin.ASK_TIMEOUT_S", 0.05)
    stuck = asyncio.new_event_loop()
    app = build_app(bench.plane, LoopDoor(stuck), catalogue=dict, gauges=list)
    assert (await get(app, "/admin/replicas"))[0] == 503
    stuck.close()
    assert (await get(app, "/admin/replicas"))[0] == 503
