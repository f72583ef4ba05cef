"""The server's view of the engine process, with the process replaced by a queue."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from roundhouse_torch.errors import Busy, EngineDied, EngineGone
from roundhouse_torch.messages.command import Abort, Add, Command, ResetCache, Sampling
from roundhouse_torch.messages.link import ServerEnd
from roundhouse_torch.messages.report import Done, Failed, Load, Loaded, Output, Report, StepReport
from roundhouse_torch.scheduler.sequence import Finish
from roundhouse_torch.server.engine_client import EngineClient
from roundhouse_torch.server.metrics import Metrics


class FakeLink:
    """What the client sent, and reports to give it; None ends the link."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.has_sent = asyncio.Event()
        self.reports: asyncio.Queue[Report | None] = asyncio.Queue()

    async def receive(self) -> Report:
        report = await self.reports.get()
        if report is None:
            raise EOFError
        return report

    def send(self, command: Command) -> None:
        self.sent.append(command)
        self.has_sent.set()


class Rig:
    def __init__(self) -> None:
        self.now = 100.0
        self.link = FakeLink()
        self.metrics = Metrics("m", 1000)
        self.client = EngineClient(
            cast(ServerEnd, self.link),
            self.metrics,
            None,
            max_waiting=2,
            health_timeout_s=60,
            clock=lambda: self.now,
        )
        self.running = asyncio.create_task(self.client.run())

    def step(self, *outputs: Output, started: list[int] | None = None, **load: int) -> None:
        self.link.reports.put_nowait(StepReport(self.now, self.now, Load(**load), started or [], list(outputs)))

    def add(self) -> Add:
        (id,) = self.client.new_ids(1)
        return Add(id, [1, 2], 10, Sampling())

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"vllm:{name}", {"model_name": "m", "engine": "0", **labels})


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    rig.running.cancel()
    await asyncio.gather(rig.running, return_exceptions=True)


def answers(rig: Rig, *adds: Add) -> Any:
    return rig.client.answers(adds, arrived=rig.now, params_n=1)


async def test_outputs_reach_their_request_and_nobody_else(rig: Rig) -> None:
    first, second = rig.add(), rig.add()
    async with answers(rig, first) as one, answers(rig, second) as two:
        rig.step(Output(first.id, [5], cached=4), Output(second.id, [6]))
        assert (await one.take()).tokens == [5]
        assert (await two.take()).tokens == [6]
        rig.step(Output(first.id, [7], 0, "stop"), Output(second.id, [8], 0, "length"))
        await one.take()
        await two.take()
    assert rig.client.in_flight == 0
    assert rig.link.sent == [first, second]
    assert rig.sample("generation_tokens_total") == 4
    assert rig.sample("request_success_total", finished_reason="stop") == 1


async def test_leaving_early_aborts_what_still_runs(rig: Rig) -> None:
    first, second = rig.add(), rig.add()
    async with answers(rig, first, second) as mailbox:
        rig.step(Output(first.id, [5], 0, "stop"))
        await mailbox.take()
    assert rig.link.sent[-1] == Abort(second.id)
    assert rig.client.in_flight == 0
    assert rig.sample("request_success_total", finished_reason="abort") == 1


async def test_outputs_that_come_after_the_abort_are_dropped(rig: Rig) -> None:
    add = rig.add()
    async with answers(rig, add):
        pass
    rig.step(Output(add.id, [5]))
    await rig.client.idle.wait()
    assert rig.sample("generation_tokens_total") == 0


async def test_more_waiting_than_allowed_is_refused(rig: Rig) -> None:
    adds = [rig.add() for _ in range(3)]
    async with answers(rig, *adds[:2]) as mailbox:
        with pytest.raises(Busy):
            async with answers(rig, adds[2]):
                pass
        rig.step(Output(adds[0].id, [1]), started=[adds[0].id])
        await mailbox.take()
        async with answers(rig, adds[2]):
            pass
    assert rig.metrics.registry.get_sample_value(
        "vllm:admission_rejections_total", {"model_name": "m", "reason": "max_num_queued_reqs"}
    ) == 1  # fmt: skip


async def test_a_request_that_leaves_the_queue_unserved_makes_room(rig: Rig) -> None:
    for _ in range(5):
        async with answers(rig, rig.add(), rig.add()):
            pass


async def test_silence_is_unhealthy_and_a_report_heals(rig: Rig) -> None:
    rig.now += 59
    assert rig.client.healthy
    rig.now += 2
    assert not rig.client.healthy
    rig.step()
    async with answers(rig, add := rig.add()) as mailbox:
        rig.step(Output(add.id, [1]))
        await mailbox.take()
    assert rig.client.healthy


async def test_everything_in_flight_fails_with_the_engine(rig: Rig) -> None:
    async with answers(rig, add := rig.add()) as mailbox:
        rig.step(Output(add.id, [1]))
        rig.link.reports.put_nowait(None)
        await asyncio.wait((rig.running,))
        assert (await mailbox.take()).tokens == [1]
        with pytest.raises(EngineGone):
            await mailbox.take()
    assert not rig.client.healthy
    assert rig.client.in_flight == 0
    with pytest.raises(EngineDied):
        async with answers(rig, rig.add()):
            pass
    with pytest.raises(EngineDied):
        await rig.client.obey(ResetCache)


async def test_the_reason_that_the_engine_gave_is_passed_on(rig: Rig) -> None:
    rig.link.reports.put_nowait(Failed("no memory"))
    with pytest.raises(EngineDied, match="no memory"):
        await rig.client.loaded


async def test_loaded_is_known_once(rig: Rig) -> None:
    loaded = Loaded(100, 16, 8, "float32", "cpu")
    rig.link.reports.put_nowait(loaded)
    assert await rig.client.loaded == loaded


async def test_answers_that_the_server_ends_are_counted_as_stopped(rig: Rig) -> None:
    async with answers(rig, add := rig.add()) as mailbox:
        rig.step(Output(add.id, [1]))
        await mailbox.take()
        rig.client.end(add.id, Finish.STOP)
    assert rig.link.sent == [add, Abort(add.id)]
    assert rig.sample("request_success_total", finished_reason="stop") == 1


async def test_stopping_ends_every_stream_with_abort(rig: Rig) -> None:
    async with answers(rig, rig.add(), rig.add()) as mailbox:
        rig.client.abort_all()
        assert [(await mailbox.take()).finish for _ in range(2)] == ["abort", "abort"]
    await rig.client.idle.wait()


async def test_a_reset_is_answered_with_what_the_engine_says(rig: Rig) -> None:
    asked = asyncio.create_task(rig.client.obey(ResetCache))
    await rig.link.has_sent.wait()
    (command,) = rig.link.sent
    assert isinstance(command, ResetCache)
    rig.link.reports.put_nowait(Done(command.ticket, "in use"))
    assert await asked == "in use"


async def test_load_is_shown_as_the_engine_reports_it(rig: Rig) -> None:
    rig.metrics.configured(Loaded(100, 16, 8, "float32", "cpu"), prefix_caching=True)
    add = rig.add()
    async with answers(rig, add) as mailbox:
        rig.step(Output(add.id, [1], cached=16), started=[add.id], running=3, waiting=4, used_blocks=2, step_tokens=9,
                 prefix_queries=20, prefix_hits=16, prompt_computed=4)  # fmt: skip
        await mailbox.take()
    assert rig.sample("num_requests_running") == 3
    assert rig.sample("num_requests_waiting") == 4
    assert rig.sample("kv_cache_usage_perc") == 0.25
    assert rig.sample("prefix_cache_hits_total") == 16
    assert rig.sample("prompt_tokens_total") == 20
    assert rig.sample("time_to_first_token_seconds_count") == 1
