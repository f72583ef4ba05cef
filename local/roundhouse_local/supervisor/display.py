"""What `roundhouse up` shows: bars on a terminal, plain lines elsewhere."""

import json
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from roundhouse_local.supervisor.progress import ReplicaView, ServiceView


class Display(Protocol):
    """``say`` a line for good; ``show`` how things are now, which may replace what was shown before."""

    def say(self, line: str) -> None: ...

    def show(self, services: Sequence[ServiceView]) -> None: ...

    def settle(self, services: Sequence[ServiceView]) -> None:
        """Everything is ready: from now on only changes are worth a line."""
        ...

    def close(self) -> None: ...


class PlainDisplay:
    """A line for each thing that changed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, str] = {}

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, services: Sequence[ServiceView]) -> None:
        now: dict[str, str] = {}
        for service in services:
            if not service.replicas and service.message:
                now[service.key] = f"{service.reason}: {service.message}"
            for replica in service.replicas:
                now[f"{service.key} {replica.name}"] = replica.milestone
        for who, what in now.items():
            if self._said.get(who) != what:
                self.say(f"{who}: {what}")
        self._said = now

    def settle(self, services: Sequence[ServiceView]) -> None:
        self.show(services)

    def close(self) -> None:
        return None


class LiveDisplay(PlainDisplay):
    """A line per replica that moves, until everything is ready; from then on as the plain one."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live: Live | None = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()

    def show(self, services: Sequence[ServiceView]) -> None:
        if self._live is None:
            super().show(services)
            return
        self._live.update(_picture(services))

    def settle(self, services: Sequence[ServiceView]) -> None:
        self.close()
        for service in services:
            for replica in service.replicas:
                self._said[f"{service.key} {replica.name}"] = replica.milestone

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def open_display(console: Console) -> Display:
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


def _picture(services: Sequence[ServiceView]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for service in services:
        table.add_row(
            Text(service.key, style="bold"), Text(service.model), Text("" if service.replicas else service.message)
        )
        for replica in service.replicas:
            table.add_row(Text(f"  {replica.name}"), _bar(replica), Text(replica.text, style=_style(replica)))
    return Group(table)


def _bar(replica: ReplicaView) -> RenderableType:
    if replica.ready:
        return Text("✔", style="green")
    if replica.stuck:
        return Text("✘", style="red")
    if replica.total:
        bar = Table.grid(padding=(0, 1))
        size = f"{replica.done / 1e6:.0f} of {replica.total / 1e6:.0f} MB"
        bar.add_row(ProgressBar(total=replica.total, completed=replica.done, width=24), Text(size))
        return bar
    return Spinner("dots")


def _style(replica: ReplicaView) -> str:
    if replica.stuck:
        return "red"
    return "green" if replica.ready else "" if replica.phase else "yellow"


def curl_line(url: str, model: str, *, with_key: bool = False) -> str:
    """A command that a person can paste into a shell."""
    key = ' -H "authorization: Bearer $ROUNDHOUSE_API_KEY"' if with_key else ""
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64}
    return f"curl {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{json.dumps(body)}'"
