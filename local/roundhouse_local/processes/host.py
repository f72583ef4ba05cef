"""The supervisor's side of the warden."""

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from roundhouse_local.errors import SpawnError

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0
SPAWN_TIMEOUT_S = 30.0
_GONE = "the process that watches over all others of this run is gone"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: its exit code, or the signal that killed it."""

    code: int
    signal: int = 0

    @property
    def shell_code(self) -> int:
        """128 + signal for a killed process, as a container runtime reports it."""
        return 128 + self.signal if self.signal else self.code


class Process:
    """One main process with everything it has started. All of it ends with the main process."""

    def __init__(self, host: "ProcessHost", number: int, pid: int, ended: "asyncio.Future[Exit]") -> None:
        self._host = host
        self._number = number
        self._ended = ended
        self.pid = pid

    @property
    def exit(self) -> Exit | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        """To the main process alone."""
        self._host.send(op="signal", id=self._number, signal=number)

    def kill(self) -> None:
        """SIGKILL to every process of it."""
        self._host.send(op="kill", id=self._number)

    async def stop(self, grace_s: float) -> Exit:
        """SIGTERM, then after ``grace_s`` SIGKILL."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()


class ProcessHost:
    """``async with ProcessHost()``: leaving it kills whatever still runs."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._spawning: dict[int, asyncio.Future[int]] = {}
        self._running: dict[int, asyncio.Future[Exit]] = {}
        self._warden: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            script = str(Path(__file__).with_name("warden.py"))
            self._warden = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", script, str(theirs.fileno()),
                pass_fds=[theirs.fileno()], start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._listening = asyncio.create_task(self._listen(reader))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._warden is not None:
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._warden.wait()
            except TimeoutError:
                self._warden.kill()
        if self._listening is not None:
            await self._listening

    async def lost(self) -> None:
        """Returns when the warden is gone, and with it everything that it started."""
        assert self._listening is not None
        await asyncio.shield(self._listening)

    async def spawn(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> Process:
        """Start ``argv``, found on the PATH of ``env``; its output is appended to ``log``. Raises `SpawnError`."""
        if self._listening is None or self._listening.done():
            raise SpawnError(_GONE)
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        started = self._spawning[number] = loop.create_future()
        ended = self._running[number] = loop.create_future()
        try:
            self.send(op="spawn", id=number, argv=list(argv), env=dict(env), cwd=str(cwd), log=str(log))
            async with asyncio.timeout(SPAWN_TIMEOUT_S):
                pid = await started
        except TimeoutError:
            raise SpawnError(f"{argv[0]}: not started within {SPAWN_TIMEOUT_S:.0f} s") from None
        except asyncio.CancelledError:
            self.send(op="kill", id=number)
            raise
        finally:
            self._spawning.pop(number, None)
        return Process(self, number, pid, ended)

    def send(self, **request: Any) -> None:
        """Nothing is left to ask for once the warden is gone: it took its processes along."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(request).encode() + b"\n")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            async for line in reader:
                self._take(json.loads(line))
        except OSError:
            logger.debug("warden_link_broke")
        for started in self._spawning.values():
            if not started.done():
                started.set_exception(SpawnError(_GONE))
        for ended in self._running.values():
            ended.set_result(Exit(0, signal.SIGKILL))
        self._running.clear()

    def _take(self, event: dict[str, Any]) -> None:
        number = event["id"]
        started = self._spawning.get(number)
        if "pid" in event:
            if started is None:  # Nobody waits for it any more.
                self.send(op="kill", id=number)
            elif not started.done():
                started.set_result(event["pid"])
        elif "error" in event:
            self._running.pop(number, None)
            if started is not None and not started.done():
                started.set_exception(SpawnError(event["error"]))
        else:
            ended = self._running.pop(number, None)
            if ended is not None:
                ended.set_result(Exit(event.get("code", 0), event.get("signal", 0)))
