"""The engine process's main loop."""

from typing import NoReturn

from roundhouse_torch.engine.core import EngineCore
from roundhouse_torch.messages.command import Abort, Add, Command, ResetCache
from roundhouse_torch.messages.link import EngineEnd
from roundhouse_torch.messages.report import CacheReset

IDLE_S = 1.0
"""An idle engine reports this often: its sign of life."""


def run_loop(core: EngineCore, link: EngineEnd) -> NoReturn:
    """Until the server closes the link, which raises `EOFError`.

    Commands take effect between steps, so an abort frees its blocks within one step. A reset is answered behind the
    report that carries its event.
    """
    while True:
        replies = [obey(core, command) for command in link.receive(0 if core.busy else IDLE_S)]
        link.send(core.step())
        for reply in replies:
            if reply is not None:
                link.send(reply)


def obey(core: EngineCore, command: Command) -> CacheReset | None:
    match command:
        case Add():
            core.add(command)
        case Abort(ids):
            for id in ids:
                core.abort(id)
        case ResetCache(ticket):
            return CacheReset(ticket, core.reset_cache())
    return None
