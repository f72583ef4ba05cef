"""The engine process's main loop."""

from pathlib import Path
from typing import NoReturn

from roundhouse_torch.engine.core import EngineCore
from roundhouse_torch.messages.command import Abort, Add, Command, LoadAdapter, Order, ResetCache, UnloadAdapter
from roundhouse_torch.messages.link import EngineEnd
from roundhouse_torch.messages.report import Done
from roundhouse_torch.models.adapter import AdapterError


def run_loop(core: EngineCore, link: EngineEnd) -> NoReturn:
    """Until the server closes the link, which raises `EOFError`.

    Commands take effect between steps, so an abort frees its blocks within one step. An order is answered behind the
    report that carries its events.
    """
    while True:
        replies = [obey(core, command) for command in link.receive(core.patience_s)]
        link.send(core.step())
        for reply in replies:
            if reply is not None:
                link.send(reply)


def obey(core: EngineCore, command: Command) -> Done | None:
    match command:
        case Add():
            core.add(command)
        case Abort(id):
            core.abort(id)
        case _:
            return Done(command.ticket, _order(core, command))
    return None


def _order(core: EngineCore, order: Order) -> str:
    """Empty, or why it cannot be done."""
    adapters = core.entrance.adapters
    match order:
        case ResetCache():
            return "" if core.reset_cache() else "blocks are in use"
        case LoadAdapter(_, name, folder) if adapters is not None:
            try:
                adapters.load(name, Path(folder))
            except AdapterError as error:
                return str(error)
        case UnloadAdapter(_, name) if adapters is not None:
            adapters.unload(name)
        case _:
            return "this engine was started without --enable-lora"
    return ""
