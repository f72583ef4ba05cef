"""Frames between server and engine process."""

import asyncio
import socket

import pytest
from roundhouse_torch.messages.command import Abort, Add, LoadAdapter, ResetCache, Sampling, UnloadAdapter
from roundhouse_torch.messages.link import EngineEnd, ServerEnd
from roundhouse_torch.messages.report import Done, Load, Loaded, Output, StepReport

from tests.unit.roundhouse_torch.test_events import stored

COMMANDS = [
    Add(1, [1, 2, 3], 10, Sampling(0.5, 0.9, 3, -7, 2, frozenset((2,)), frozenset((5, 6))), "salt", "adapter"),
    Abort(2),
    ResetCache(3),
    LoadAdapter(4, "a", "/a"),
    UnloadAdapter(5, "a"),
]
REPORTS = [
    Loaded(100, 16, 8, "float32", "cpu"),
    StepReport(1.5, 2.5, Load(running=1), [1], [Output(1, [5], 16, "stop", 7)], [stored(10, 20, salt="s")]),
    Done(3, "no"),
]


async def test_commands_and_reports_arrive_as_they_were_sent() -> None:
    ours, theirs = socket.socketpair()
    server, engine = await ServerEnd.open(ours), EngineEnd(theirs)
    for command in COMMANDS:
        server.send(command)
    await asyncio.sleep(0)
    found = []
    while len(found) < len(COMMANDS):
        found += await asyncio.to_thread(engine.receive, 5)
    assert found == COMMANDS
    for report in REPORTS:
        engine.send(report)
    assert [await server.receive() for _ in REPORTS] == REPORTS
    server.close()
    theirs.close()


def test_frames_may_be_cut_anywhere() -> None:
    ours, theirs = socket.socketpair()
    sent, received = EngineEnd(ours), EngineEnd(theirs)
    for command in COMMANDS:
        sent.send(command)  # type: ignore[arg-type]  # both ends frame alike
    data = theirs.recv(65536)
    found = []
    for index in range(len(data)):
        ours.send(data[index : index + 1])
        found += received.receive(0)
    assert found == COMMANDS


def test_waiting_ends_at_the_deadline_without_commands() -> None:
    ours, theirs = socket.socketpair()
    assert EngineEnd(theirs).receive(0.01) == []
    ours.close()


async def test_a_closed_link_is_the_end_of_the_file() -> None:
    ours, theirs = socket.socketpair()
    server = await ServerEnd.open(ours)
    theirs.close()
    with pytest.raises(EOFError):
        await server.receive()
    ours, theirs = socket.socketpair()
    ours.close()
    engine = EngineEnd(theirs)
    with pytest.raises(EOFError):
        engine.receive(5)
    with pytest.raises(EOFError):
        engine.send(REPORTS[0])
