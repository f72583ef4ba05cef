"""The engine as a child process.

Nothing heavy is imported here: the child imports torch while the parent loads the server.
"""

import ctypes
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roundhouse_torch.errors import EngineError
from roundhouse_torch.messages.link import EngineEnd
from roundhouse_torch.messages.report import Failed
from roundhouse_torch.settings import EngineSettings

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """``link`` is the server's end of the socket pair; closing it ends the engine after its current step.

    With tensor parallelism ``process`` leads and ``followers`` compute along; ``meeting`` is where they find each
    other.
    """

    process: multiprocessing.process.BaseProcess
    link: socket.socket
    followers: Sequence[multiprocessing.process.BaseProcess] = ()
    meeting: Path | None = None

    @classmethod
    def start(cls, settings: EngineSettings) -> "EngineProcess":
        """Fork, while this process still has one thread and no event loop."""
        ours, theirs = socket.socketpair()
        fork = multiprocessing.get_context("fork")
        pipes = [fork.Pipe(duplex=False) for _ in range(settings.tensor_parallel_size - 1)]
        meeting = Path(tempfile.mkdtemp(prefix="roundhouse-")) if pipes else None
        group = Group(meeting, [send for _, send in pipes])
        process = fork.Process(target=_main, args=(settings, theirs, ours, os.getpid(), group), daemon=True)
        followers = [
            fork.Process(target=_follow, args=(settings, rank, receive, os.getpid(), group), daemon=True)
            for rank, (receive, _) in enumerate(pipes, 1)
        ]
        for one in (process, *followers):
            one.start()
        theirs.close()
        for receive, send in pipes:
            receive.close()
            send.close()
        return cls(process, ours, followers, meeting)

    def stop(self) -> None:
        """Returns when the processes are gone: by themselves once the link is closed, else killed."""
        self.link.close()
        for process in (self.process, *self.followers):
            process.join(STOP_SECONDS)
            process.kill()
            process.join()
        if self.meeting is not None:
            shutil.rmtree(self.meeting, ignore_errors=True)

    def describe_exit(self) -> str:
        self.process.join(STOP_SECONDS)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"the engine process was killed by {signal.Signals(-code).name}"
        return f"the engine process ended with exit code {code}"


@dataclass(frozen=True, slots=True)
class Group:
    """How the leader reaches its followers; both empty for a single process."""

    meeting: Path | None
    pipes: "list[Connection]"

    def join(self, rank: int, device: str) -> None:
        if self.meeting is not None:
            from roundhouse_torch.engine.parallel import meet
            from roundhouse_torch.models.layers.shard import Shard
            from roundhouse_torch.models.loading import choose_device

            meet(Shard(rank, 1 + len(self.pipes)), self.meeting / "group", choose_device(device, rank).type)


def _main(settings: EngineSettings, link: socket.socket, parents_end: socket.socket, parent: int, group: Group) -> None:
    parents_end.close()
    _prepare(settings, parent)
    server = EngineEnd(link)
    with suppress(EOFError):  # the server ended first
        try:
            from roundhouse_torch.engine.build import build
            from roundhouse_torch.engine.core import run_loop

            group.join(0, settings.device)
            engine = build(settings, group.pipes)
            server.send(engine.loaded)
            run_loop(engine.core, server)
        except EngineError as error:
            server.send(Failed(str(error)))
        except EOFError:
            raise
        except Exception as error:
            log.exception("engine_failed")
            server.send(Failed(f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"))


def _follow(settings: EngineSettings, rank: int, leader: "Connection", parent: int, group: Group) -> None:
    for pipe in group.pipes:
        pipe.close()
    _prepare(settings, parent)
    from roundhouse_torch.engine.parallel import follow
    from roundhouse_torch.models.layers.shard import Shard
    from roundhouse_torch.models.loading import load_model

    try:
        group.join(rank, settings.device)
        model = load_model(settings, Shard(rank, 1 + len(group.pipes)))
        follow(model.decoder, model.attention, leader, model.storage.device)
    except Exception:  # whatever it is, the leader's next collective fails and the engine ends with it
        log.exception("follower_failed rank=%d", rank)


def _prepare(settings: EngineSettings, parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # be killed when the server is, however it ends (Linux)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server decides when to stop
    # Idle pool threads must sleep, not spin: replicas share cores. Read when torch is imported.
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Huge pages for weights and freed memory kept: page faults and address look-ups are a third of a small CPU step.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # malloc reuses big blocks instead of returning each to the system (glibc; others have no mallopt).
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
