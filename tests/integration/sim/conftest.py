"""Simulators as real processes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
START_SECONDS = 30


@dataclass
class Sim:
    """A running simulator."""

    process: "subprocess.Popen[str]"
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


StartSim = Callable[..., Sim]


def launch(*options: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "engines")}
    argv = [sys.executable, "-m", "roundhouse_sim", *options]
    return subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)


def start(*options: str) -> Sim:
    process = launch("--port", "0", *options)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"listening .*port=(\d+)", line):
            return Sim(process, int(found[1]))
    raise AssertionError(f"the simulator ended with {process.wait(START_SECONDS)} before it listened")


def stop(sim: Sim) -> None:
    sim.process.kill()
    sim.process.wait(START_SECONDS)
    assert sim.process.stderr is not None
    sim.process.stderr.close()


@pytest.fixture
def start_sim() -> Iterator[StartSim]:
    """Starts simulators that end with the test."""
    started: list[Sim] = []

    def starter(*options: str) -> Sim:
        started.append(start(*options))
        return started[-1]

    yield starter
    for sim in started:
        stop(sim)


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    """One fast simulator for the tests of a module that leave no trace."""
    running = start("--speedup", "200")
    yield running
    stop(running)
