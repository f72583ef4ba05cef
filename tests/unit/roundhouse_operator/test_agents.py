"""The client of the agents' HTTP API, against a server on loopback."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from roundhouse_operator.agents import DrainAnswer, HttpAgents
from roundhouse_operator.errors import AgentError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Agent:
    """Answers every request as told and keeps what it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.status = 200
        self.body: Any = {"v": 1, "state": "draining", "remainingMs": 1500}
        self.asked: list[tuple[str, str, str]] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path, await request.text()))
        if isinstance(self.body, str):
            return web.Response(text=self.body, status=self.status)
        return web.json_response(self.body, status=self.status)


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    agent = Agent()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", agent.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    agent.port = runner.addresses[0][1]
    yield agent
    await runner.cleanup()


@pytest.fixture
async def client(agent: Agent) -> AsyncIterator[HttpAgents]:
    async with HttpAgents(1.0, port=agent.port) as client:
        yield client


async def test_drain_posts_the_deadline(agent: Agent, client: HttpAgents) -> None:
    answer = await client.drain("127.0.0.1", 1_700_000_000.0)
    assert answer == DrainAnswer("draining", 1500)
    assert not answer.drained
    assert agent.asked == [("POST", "/drain", '{"deadlineMs": 1700000000000}')]


async def test_drained_is_told(agent: Agent, client: HttpAgents) -> None:
    agent.body = {"v": 1, "state": "drained"}
    assert (await client.drain("127.0.0.1", 0)).drained


async def test_undrain_deletes(agent: Agent, client: HttpAgents) -> None:
    agent.body = {"v": 1, "state": "ready"}
    assert not (await client.undrain("127.0.0.1")).drained
    assert agent.asked == [("DELETE", "/drain", "")]


async def test_a_drain_that_cannot_be_called_off_has_drained(agent: Agent, client: HttpAgents) -> None:
    agent.status = 409
    assert (await client.undrain("127.0.0.1")).drained


@pytest.mark.parametrize(("status", "body"), [(500, {}), (200, "no json"), (200, [1]), (200, {"state": 7}), (409, {})])
async def test_unusable_answers(agent: Agent, client: HttpAgents, status: int, body: Any) -> None:
    agent.status, agent.body = status, body
    with pytest.raises(AgentError, match=r"POST http://127\.0\.0\.1"):
        await client.drain("127.0.0.1", 0)


async def test_no_answer() -> None:
    async with HttpAgents(0.2, port=1) as client:
        with pytest.raises(AgentError):
            await client.drain("127.0.0.1", 0)
        with pytest.raises(AgentError, match=r"http://\[::1\]:1/drain"):
            await client.undrain("::1")
