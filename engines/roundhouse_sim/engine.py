"""Runs the scheduler against the clock.

Virtual time is the clock's time since the start, times ``speedup``. A segment's effects are applied when its virtual
end has passed; the next one starts at that very instant however late the timer fired, so lateness never adds up and
latencies are exact at any speed that the CPU can follow (``lag`` tells). Everything happens in callbacks of one event
loop: `submit` and `abort` first bring the engine up to the present, so arrivals fall into the right step.
"""

import asyncio
import time
from collections.abc import Callable
from math import ceil
from typing import Final, Protocol

from roundhouse_sim.cache import Change, PrefixCache
from roundhouse_sim.job import Job
from roundhouse_sim.scheduler import Phase, Scheduler, Segment
from roundhouse_sim.settings import Settings

SEGMENTS_PER_TURN: Final = 64
ROUNDING: Final = 1e-6  # seconds by which a timer may seem early


class Timers(Protocol):
    """The part of an event loop that the engine needs."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle: ...


class Engine:
    """``publish(changes)`` gets what a step did to the cache; None: nobody wants to know. Jobs may be aborted, but not
    submitted, while another job's ``deliver`` runs."""

    def __init__(
        self,
        settings: Settings,
        publish: Callable[[list[Change]], None] | None,
        timers: Timers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cache = PrefixCache(settings.blocks, record=publish is not None)
        self.scheduler = Scheduler(settings.cost, self.cache, settings.block_size, settings.limits)
        self.clock = clock
        self.lag = 0.0
        self.steps = 0
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._speedup = settings.speedup
        self._slowdown = 1.0
        self._publish = publish
        self._timers = timers
        self._origin = clock()
        self._segment: Segment | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def kv_used(self) -> float:
        """Share of the cache's blocks that running sequences hold."""
        return self.cache.used / self.cache.blocks

    @property
    def jobs(self) -> list[Job]:
        """Everything waiting or running."""
        scheduler = self.scheduler
        return [s for s in (*scheduler.waiting, *scheduler.prefilling, *scheduler.decoding) if isinstance(s, Job)]

    def submit(self, job: Job) -> None:
        now = self._advance()
        job.arrived = self.clock()
        self.scheduler.submit(job)
        if self._segment is None:
            self._plan(now)
        else:
            self._segment.cut(now)
        self._arm()

    def abort(self, job: Job) -> None:
        """Drop a job that nobody waits for; harmless when it is over."""
        self._advance()
        self.scheduler.release(job)
        self._flush()
        self._arm()

    def slow_down(self, factor: float) -> None:
        """From now on steps take ``factor`` times what the cost model says, the current one included."""
        now = self._advance()
        if self._segment is not None:
            self._segment.rescale(now, factor / self._slowdown)
        self._slowdown = factor
        self._arm()

    def clear_cache(self) -> bool:
        """Forget every block; False while requests run."""
        self._advance()
        cleared = self.cache.clear()
        self._flush()
        return cleared

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _advance(self) -> float:
        """Apply every segment that has ended by now; returns the virtual time."""
        now = (self.clock() - self._origin) * self._speedup
        for _ in range(SEGMENTS_PER_TURN):
            segment = self._segment
            if segment is None or segment.end > now + ROUNDING:
                self.lag = 0.0
                return now
            self._segment = None
            self._complete(segment)
            self._plan(segment.end)
        self.lag = now - self._segment.end if self._segment else 0.0
        return now

    def _plan(self, now: float) -> None:
        self._segment = self.scheduler.plan(now, self._slowdown)
        if self._segment is not None:
            for sequence, _ in self._segment.chunks:
                if isinstance(sequence, Job) and not sequence.started:
                    sequence.started = self.clock()

    def _arm(self) -> None:
        self.stop()
        if self._segment is not None:
            delay = self._origin + self._segment.end / self._speedup - self.clock()
            self._timer = self._timers.call_later(max(0.0, ceil((delay - ROUNDING) * 1000) / 1000), self._turn)

    def _turn(self) -> None:
        self._advance()
        self._arm()

    def _complete(self, segment: Segment) -> None:
        self.steps += segment.steps
        for job in self.scheduler.finish(segment):
            if isinstance(job, Job) and job.phase is not Phase.DONE:
                self.generated_tokens += 1 if job.generated == 1 else segment.steps
                self._progress(job)
        self._flush()

    def _progress(self, job: Job) -> None:
        first = not job.first
        if first:
            job.first = self.clock()
            self.prompt_tokens += job.prompt_tokens
            self.cached_tokens += job.cached_tokens
        job.write_on()
        if job.complete:
            job.finish = job.ending
            self.scheduler.release(job)
            job.deliver(job)
            return
        self.scheduler.commit(job)
        if first or job.generated >= job.wake_at:
            job.wake_at = min(job.output_tokens, job.generated + (job.interval or job.output_tokens))
            job.deliver(job)

    def _flush(self) -> None:
        changes = self.cache.take_changes()
        if changes and self._publish is not None:
            self._publish(changes)
