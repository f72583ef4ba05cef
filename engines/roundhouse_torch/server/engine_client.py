"""The engine process as the server sees it: start answers, collect their tokens, know whether it lives."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from roundhouse_torch.errors import Busy, EngineDied, EngineGone
from roundhouse_torch.events.publisher import EventPublisher
from roundhouse_torch.messages.command import Abort, Add, Order
from roundhouse_torch.messages.link import ServerEnd
from roundhouse_torch.messages.report import Done, Failed, Loaded, Output, Report, StepReport
from roundhouse_torch.scheduler.sequence import Finish
from roundhouse_torch.server.metrics import Metrics, Timeline


class Mailbox(asyncio.Queue[Output | EngineDied]):
    """Outputs of one HTTP request's answers. Never more than their max_tokens, so it needs no bound."""

    async def take(self) -> Output:
        """Raises `EngineDied` behind the outputs that came before."""
        item = await self.get()
        if isinstance(item, EngineDied):
            raise item
        return item


class EngineClient:
    """``loaded`` resolves when the model answers; ``idle`` is set while nothing is in flight.

    `run` owns the link: it ends when the engine does, by raising `EngineDied`.
    """

    def __init__(
        self, link: ServerEnd, metrics: Metrics, publisher: EventPublisher | None, *,
        max_waiting: int, health_timeout_s: float, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._link = link
        self._metrics = metrics
        self._publisher = publisher
        self._max_waiting = max_waiting
        self._health_timeout_s = health_timeout_s
        self._clock = clock
        self._answers: dict[int, tuple[Mailbox, Timeline]] = {}
        self._waiting: set[int] = set()
        self._orders: dict[int, asyncio.Future[str]] = {}
        self._next_id = 0
        self._heard_at = clock()
        self._died: EngineDied | None = None
        self.idle = asyncio.Event()
        self.idle.set()
        self.loaded: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()

    @property
    def in_flight(self) -> int:
        return len(self._answers)

    @property
    def healthy(self) -> bool:
        """The engine lives and its loop has shown it lately."""
        return self._died is None and self._clock() - self._heard_at < self._health_timeout_s

    async def run(self) -> None:
        try:
            while True:
                self._handle(await self._link.receive())
        except EOFError:
            self._died = EngineGone("the engine process ended")
        except EngineDied as error:
            self._died = error
        for mailbox, _ in self._answers.values():
            mailbox.put_nowait(self._died)
        self._answers.clear()
        self._waiting.clear()
        self.idle.set()
        futures: list[asyncio.Future[Any]] = [self.loaded, *self._orders.values()]
        for future in futures:
            if not future.done():
                future.set_exception(self._died)
                future.exception()  # nobody need be waiting for it
        raise self._died

    @asynccontextmanager
    async def answers(self, adds: Sequence[Add], *, arrived: float, params_n: int) -> AsyncIterator[Mailbox]:
        """Start all of ``adds`` (ids from `new_ids`) and abort on leaving what has not ended by then. Raises `Busy`."""
        if self._died is not None:
            raise self._died
        if len(self._waiting) + len(adds) > self._max_waiting:
            self._metrics.rejected()
            raise Busy("The engine is currently busy and cannot accept new requests. Please try again later.")
        mailbox = Mailbox()
        for add in adds:
            allowed = add.max_length - len(add.tokens)
            self._answers[add.id] = mailbox, Timeline(arrived, len(add.tokens), allowed, params_n)
            self._waiting.add(add.id)
            self.idle.clear()
            self._link.send(add)
        try:
            yield mailbox
        finally:
            for add in adds:
                self.end(add.id, Finish.ABORT)

    def new_ids(self, count: int) -> range:
        first = self._next_id
        self._next_id += count
        return range(first, self._next_id)

    def end(self, id: int, finish: Finish) -> None:
        """An answer that the server ends itself: at a stop string, or because nobody waits for it."""
        if id in self._answers:
            self._forget(id, finish)
            self._link.send(Abort(id))

    def abort_all(self) -> None:
        """End every answer with finish_reason abort, as its client will see."""
        for id, (mailbox, _) in list(self._answers.items()):
            mailbox.put_nowait(Output(id, [], 0, Finish.ABORT))
            self.end(id, Finish.ABORT)

    async def obey(self, order: Callable[..., Order], *arguments: str) -> str:
        """Have an order obeyed; gives why it was not, or nothing."""
        if self._died is not None:
            raise self._died
        (ticket,) = self.new_ids(1)
        self._orders[ticket] = asyncio.get_running_loop().create_future()
        self._link.send(order(ticket, *arguments))
        try:
            return await self._orders[ticket]
        finally:
            del self._orders[ticket]

    def _handle(self, report: Report) -> None:
        self._heard_at = self._clock()
        match report:
            case StepReport():
                self._step(report)
            case Loaded():
                self.loaded.set_result(report)
            case Done(ticket, error):
                if ticket in self._orders and not self._orders[ticket].done():
                    self._orders[ticket].set_result(error)
            case Failed(message):
                raise EngineDied(message)

    def _step(self, report: StepReport) -> None:
        if self._publisher is not None:
            self._publisher.publish(report.events)
        self._metrics.step(report.load)
        for id in report.started:
            self._waiting.discard(id)
            if id in self._answers:
                self._answers[id][1].began = report.began
        for output in report.outputs:
            if output.id not in self._answers:
                continue
            mailbox, timeline = self._answers[output.id]
            if output.error is None:
                self._metrics.tokens(timeline, output, report.ended)
            mailbox.put_nowait(output)
            if output.finish is not None:
                self._forget(output.id, Finish(output.finish))

    def _forget(self, id: int, finish: Finish) -> None:
        _, timeline = self._answers.pop(id)
        self._waiting.discard(id)
        if not self._answers:
            self.idle.set()
        self._metrics.ended(timeline, finish, self._clock())
