"""The engine as a child process.

Nothing heavy is imported here: the child imports torch while the parent loads the server.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass

from roundhouse_torch.engine.loop import run_loop
from roundhouse_torch.errors import EngineError
from roundhouse_torch.messages.link import EngineEnd
from roundhouse_torch.messages.report import Failed
from roundhouse_torch.settings import EngineSettings

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """``link`` is the server's end of the socket pair; closing it ends the engine after its current step."""

    process: multiprocessing.process.BaseProcess
    link: socket.socket

    @classmethod
    def start(cls, settings: EngineSettings) -> "EngineProcess":
        """Fork, while this process still has one thread and no event loop."""
        ours, theirs = socket.socketpair()
        process = multiprocessing.get_context("fork").Process(
            target=_main, args=(settings, theirs, ours, os.getpid()), name="roundhouse-engine", daemon=True
        )
        process.start()
        theirs.close()
        return cls(process, ours)

    def stop(self) -> None:
        """Returns when the process is gone: by itself once the link is closed, else killed."""
        self.link.close()
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def describe_exit(self) -> str:
        self.process.join(STOP_SECONDS)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"the engine process was killed by {signal.Signals(-code).name}"
        return f"the engine process ended with exit code {code}"


def _main(settings: EngineSettings, link: socket.socket, parents_end: socket.socket, parent: int) -> None:
    parents_end.close()
    _die_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server decides when to stop
    # Idle pool threads must sleep, not spin: replicas share cores. Read when torch is imported.
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with suppress(EOFError):  # the server ended first
        _run(settings, EngineEnd(link))


def _run(settings: EngineSettings, link: EngineEnd) -> None:
    try:
        from roundhouse_torch.engine.build import build

        engine = build(settings)
        link.send(engine.loaded)
        run_loop(engine.core, link)
    except EngineError as error:
        link.send(Failed(str(error)))
    except EOFError:
        raise
    except Exception as error:
        log.exception("engine_failed")
        link.send(Failed(f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"))


def _die_with(parent: int) -> None:
    """Be killed when the server is, however it ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
