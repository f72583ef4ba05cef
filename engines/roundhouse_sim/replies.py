"""From tokens to an answer: streamed or whole, complete or broken off by a fault, a shutdown or the client.

A `Reply` owns the jobs of one request (prompts × n). Whatever ends it, ``close`` runs once: it aborts what is left in
the engine and tells the service.
"""

import os
import sys
from collections.abc import Callable
from typing import Final

from roundhouse_sim.answer import AnswerWriter
from roundhouse_sim.bodies import Generate
from roundhouse_sim.engine import Engine
from roundhouse_sim.errors import ApiError
from roundhouse_sim.faults import Fault, Kind
from roundhouse_sim.job import Job
from roundhouse_sim.server import Exchange
from roundhouse_sim.settings import Settings
from roundhouse_sim.shapes import DONE, Counts, Shape, error_body, error_event
from roundhouse_sim.tokens import Tokens

BROKEN: Final = ApiError(500, "InternalServerError", "scripted fault")


def crash() -> None:
    """Exit at once, as a killed process would: nothing is closed or flushed but the last words."""
    sys.stderr.write("crashed by a scripted fault\n")
    sys.stderr.flush()
    os._exit(1)


class Reply:
    """Base of both kinds. ``ended(reply, job)`` is called for each job that finished or was aborted, and with job None
    when the reply is over."""

    def __init__(
        self,
        exchange: Exchange,
        request: Generate,
        shape: Shape,
        engine: Engine,
        settings: Settings,
        fault: Fault | None,
        ended: Callable[["Reply", Job | None], None],
    ) -> None:
        self.exchange = exchange
        self.request = request
        self.shape = shape
        self.events = 0
        self.jobs = [self._job(prompt, choice, settings) for prompt in request.prompts for choice in range(request.n)]
        self._engine = engine
        self._fault = fault
        self._ended = ended
        self._closed = False
        self._open = len(self.jobs)

    def start(self) -> None:
        self.exchange.gone = self.close
        for job in self.jobs:
            self._engine.submit(job)

    def deliver(self, job: Job) -> None:
        """Tokens of ``job`` have come."""
        raise NotImplementedError

    def cut(self) -> None:
        """End now with finish_reason abort."""
        raise NotImplementedError

    def fail(self, error: ApiError) -> None:
        """End now with an error object."""
        raise NotImplementedError

    def close(self) -> None:
        """The answer is over, or nobody wants it any more."""
        if not self._closed:
            self._closed = True
            self._abort_open()
            self._ended(self, None)

    def _strike(self) -> bool:
        """Break the reply if its fault is due before the next event; True when it did."""
        fault = self._fault
        if fault is None or self.events < (fault.after_events or 0):
            return False
        if fault.fault is Kind.ABORT:
            self.cut()
        elif fault.fault is Kind.ERROR:
            self.fail(BROKEN)
        elif fault.fault is Kind.CRASH:
            crash()
        else:
            self.exchange.reset()
        self.close()
        return True

    def _abort_open(self) -> list[Job]:
        """Abort the jobs that are not over; returns them."""
        left = [job for job in self.jobs if job.finish is None]
        for job in left:
            job.finish = "abort"
            self._engine.abort(job)
            self._over(job)
        return left

    def _over(self, job: Job) -> bool:
        """Count the end of ``job``; True when it was the last."""
        self._open -= 1
        self._ended(self, job)
        return self._open == 0

    def _counts(self) -> Counts:
        firsts = self.jobs[:: self.request.n]
        cached = sum(job.cached_tokens for job in firsts)
        full = sum(job.prompt_tokens // job.block_size * job.block_size for job in firsts)
        prompt = sum(job.prompt_tokens for job in firsts)
        return Counts(prompt, sum(job.generated for job in self.jobs), cached, max(0, full - cached))

    def _job(self, prompt: Tokens, choice: int, settings: Settings) -> Job:
        request = self.request
        room = settings.context_limit - len(prompt)
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        writer = AnswerWriter(prompt, request.seed + choice, settings.answer_tokens if request.ends else 0)
        job = Job(prompt, writer, limit, request.salt, settings.block_size, self.deliver)
        if request.ends or request.stop:
            job.fix_answer(request.stop)
        return job


class StreamReply(Reply):
    """Server-sent events. Headers go out at once, as engines do."""

    def __init__(
        self,
        exchange: Exchange,
        request: Generate,
        shape: Shape,
        engine: Engine,
        settings: Settings,
        fault: Fault | None,
        ended: Callable[[Reply, Job | None], None],
    ) -> None:
        super().__init__(exchange, request, shape, engine, settings, fault, ended)
        self._index = {job: index for index, job in enumerate(self.jobs)}
        self._sent = [0] * len(self.jobs)
        for job in self.jobs:
            job.interval = 1 if fault else settings.stream_interval

    def start(self) -> None:
        self.exchange.start_stream()
        super().start()

    def deliver(self, job: Job) -> None:
        events = self._news(job)
        if self._fault is not None:
            for at in range(len(events)):
                if self.events == (self._fault.after_events or 0):
                    self.exchange.send(*events[:at])
                if self._strike():
                    return
                self.events += 1
        if job.finish and self._over(job):
            self._finish(events)
        else:
            self.exchange.send(*events)

    def cut(self) -> None:
        self._finish([event for job in self._abort_open() for event in self._news(job)])

    def fail(self, error: ApiError) -> None:
        self.exchange.send(error_event(error), DONE)
        self.exchange.end_stream()
        self.close()

    def _news(self, job: Job) -> list[bytes]:
        """Events for what is new of one choice."""
        index = self._index[job]
        sent = self._sent[index]
        usage = self._counts() if self.request.continuous_usage else None
        events: list[bytes] = []
        if not sent and (opening := self.shape.opening(index, job, usage)):
            events.append(opening)
        events.append(self.shape.delta(index, job, sent, usage))
        self._sent[index] = job.generated
        return events

    def _finish(self, events: list[bytes]) -> None:
        if self.request.include_usage:
            events.append(self.shape.usage(self._counts()))
        self.exchange.send(*events, DONE)
        self.exchange.end_stream()
        self.close()


class WholeReply(Reply):
    """One JSON body."""

    def start(self) -> None:
        if self._fault is not None:
            for job in self.jobs:
                job.interval = 1
        super().start()

    def deliver(self, job: Job) -> None:
        if self._fault is not None:
            self.events = sum(other.generated for other in self.jobs)
            if self._strike():
                return
        if job.finish and self._over(job):
            self._finish()

    def cut(self) -> None:
        self._abort_open()
        self._finish()

    def fail(self, error: ApiError) -> None:
        self.exchange.respond(error.status, error_body(error))
        self.close()

    def _finish(self) -> None:
        self.exchange.respond(200, self.shape.whole(self.jobs, self._counts()))
        self.close()
