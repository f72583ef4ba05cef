"""How many replicas a service with ``spec.scaling`` should have: `decide`, a pure function of what was reported.

Two signals, and the larger wish counts.

* Queues: with R requests running and W waiting on N replicas, of which a busy one runs c at a time, n replicas bring
  the queues to q each when ``n * (c + q) = R + W``. That is the wish once W exceeds ``N * q``; until then as many
  replicas are enough as run all requests at once, ``n * c = R + W``. c is what replicas were last seen to run behind
  a queue.
* KV cache: shares in use add up, so n replicas are at the target share t when ``n * t`` is their sum.

Up at once and straight to the wish. Down by one replica when every wish of the whole delay was lower, when nothing
else is going on (all replicas serve, none is being drained) and all report. What is not reported is unknown: it never
asks for more and never lets fewer be enough. After a step in either direction the same load asks for no step in the
other one, so a load that does not change moves nothing back and forth.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from roundhouse_operator.api.scaling import Scaling

DEFAULT_QUEUE_DEPTH: Final = 4
DEFAULT_KV_USAGE: Final = 80
DEFAULT_DELAY_S: Final = 300


@dataclass(frozen=True, slots=True)
class Load:
    """What one replica reports; None is unknown. ``kv_used`` is a share."""

    waiting: int | None = None
    running: int | None = None
    kv_used: float | None = None

    @property
    def known(self) -> bool:
        return self.waiting is not None and self.running is not None and self.kv_used is not None


@dataclass(frozen=True, slots=True)
class Report:
    """One look: the loads of all replicas that serve, and the requests that gateways hold for want of a replica."""

    loads: Sequence[Load] = ()
    held: int = 0

    @property
    def complete(self) -> bool:
        return bool(self.loads) and all(load.known for load in self.loads)


@dataclass(frozen=True, slots=True)
class Bounds:
    """``spec.scaling`` with its defaults filled in. ``kv_usage`` is a share."""

    least: int
    most: int
    queue_depth: int
    kv_usage: float
    delay_s: float

    @classmethod
    def of(cls, spec: Scaling) -> "Bounds":
        return cls(
            least=1 if spec.min is None else spec.min,
            most=spec.max,
            queue_depth=spec.queue_depth or DEFAULT_QUEUE_DEPTH,
            kv_usage=(spec.kv_usage or DEFAULT_KV_USAGE) / 100,
            delay_s=DEFAULT_DELAY_S if spec.scale_down_delay_seconds is None else spec.scale_down_delay_seconds,
        )


@dataclass(frozen=True, slots=True)
class Wish:
    """Replicas that one report asks for, unbounded; ``reason`` and ``message`` tell by which signal."""

    replicas: int
    reason: str
    message: str


@dataclass(slots=True)
class History:
    """What was wished for of late, in as few entries as tell the largest wish since any time.

    ``begun``: from when on nothing is missing; ``silent_since``: from when on something is. ``capacity``: requests that
    a replica ran while others waited for it.
    """

    begun: float | None = None
    last: float | None = None
    silent_since: float | None = None
    report: Report = field(default_factory=Report)
    capacity: float | None = None
    _peaks: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, report: Report, bounds: Bounds, gap_s: float = 15.0) -> None:
        """A look with unknown loads, or none for ``gap_s``, begins the history anew."""
        self.report = report
        self.capacity = _capacity(report, bounds, self.capacity)
        if not report.complete:
            self.begun = self.last = None
            self._peaks.clear()
            # Nobody who could report is no silence.
            self.silent_since = (now if self.silent_since is None else self.silent_since) if report.loads else None
            return
        self.silent_since = None
        if self.last is None or now - self.last > gap_s:
            self.begun = now
            self._peaks.clear()
        self.last = now
        wished = wish(report, bounds, self.capacity).replicas
        while self._peaks and self._peaks[-1][1] <= wished:
            self._peaks.pop()
        self._peaks.append((now, wished))
        while self._peaks[0][0] < now - bounds.delay_s:
            self._peaks.popleft()

    def silent_for(self, now: float) -> float:
        """Seconds since when some replica does not report."""
        return 0.0 if self.silent_since is None else now - self.silent_since

    def peak(self, now: float, span_s: float) -> int | None:
        """The largest wish within the last ``span_s``; None when the history does not reach so far back."""
        if self.begun is None or self.begun > now - span_s:
            return None
        return self.recent_peak(now, span_s)

    def recent_peak(self, now: float, span_s: float) -> int:
        """The largest wish within as much of ``span_s`` as there is; 0 when nothing is known."""
        since = min(now - span_s, now if self.last is None else self.last)
        return next((wished for time, wished in self._peaks if time >= since), 0)


@dataclass(frozen=True, slots=True)
class Situation:
    """``current``: replicas decided on so far, None at first. ``existing``: those that are not being stopped.
    ``settled``: all of them serve and none is on its way out.
    """

    current: int | None
    existing: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """``reason`` is empty while nothing changes."""

    replicas: int
    reason: str = ""
    message: str = ""


def decide(history: History, bounds: Bounds, situation: Situation, now: float) -> Decision:
    """The number of replicas from now on."""
    current = situation.current
    if current is None:
        first = min(max(situation.existing, bounds.least), bounds.most)
        return Decision(first, "Started", f"begins with {first}, between {bounds.least} and {bounds.most}")
    if not bounds.least <= current <= bounds.most:
        bounded = min(max(current, bounds.least), bounds.most)
        return Decision(bounded, "Bounds", f"spec.scaling allows {bounds.least} to {bounds.most}")
    wished = wish(history.report, bounds, history.capacity)
    if wished.replicas > current:
        target = min(wished.replicas, bounds.most)
        return Decision(target, wished.reason, wished.message) if target > current else Decision(current)
    peak = history.peak(now, bounds.delay_s)
    if current > bounds.least and situation.settled and peak is not None and peak < current:
        text = f"{current - 1} replicas were enough for {bounds.delay_s:.0f} s: now {_figures(history.report)}"
        return Decision(current - 1, "LowLoad", text)
    return Decision(current)


def wish(report: Report, bounds: Bounds, capacity: float | None) -> Wish:
    """What one report asks for."""
    by_queue, by_cache = _by_queue(report, bounds, capacity), _by_cache(report, bounds)
    seen = _figures(report)
    if by_queue >= by_cache:
        return Wish(by_queue, "QueueDepth", f"{seen}: {bounds.queue_depth} may wait for each replica")
    return Wish(by_cache, "KVUsage", f"{seen}: {bounds.kv_usage:.0%} may be in use")


def _by_queue(report: Report, bounds: Bounds, capacity: float | None) -> int:
    count, waiting = len(report.loads), _waiting(report)
    if count == 0:
        return min(1, report.held)
    if capacity is None:
        return 0
    demand = waiting + sum(load.running or 0 for load in report.loads)
    if waiting > count * bounds.queue_depth:
        return math.ceil(demand / (capacity + bounds.queue_depth))
    return min(count, math.ceil(demand / capacity))


def _by_cache(report: Report, bounds: Bounds) -> int:
    used = sum(load.kv_used or 0.0 for load in report.loads)
    return math.ceil(round(used / bounds.kv_usage, 6))


def _capacity(report: Report, bounds: Bounds, before: float | None) -> float | None:
    """A replica with a queue longer than asked for runs as much as it can; one without can do what it does."""
    busy = [max(1, load.running or 0) for load in report.loads if (load.waiting or 0) > bounds.queue_depth]
    if busy:
        return sum(busy) / len(busy)
    return None if before is None else max(before, *(load.running or 0 for load in report.loads), 1)


def _waiting(report: Report) -> int:
    return sum(load.waiting or 0 for load in report.loads) + report.held


def _figures(report: Report) -> str:
    loads = report.loads
    running = sum(load.running or 0 for load in loads)
    used = [load.kv_used for load in loads if load.kv_used is not None]
    share = f"{sum(used) / len(used):.0%}" if used else "unknown"
    replicas = "1 replica" if len(loads) == 1 else f"{len(loads)} replicas"
    return f"{_waiting(report)} waiting, {running} running, {share} of the KV cache in use on {replicas}"
