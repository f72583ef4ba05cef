"""Discrete-event simulation of replicas behind a router: the simulator's own scheduler and cache, any policy.

Every request arrives once, is sent where the policy says, waits, is prefilled and decoded there. Events are arrivals,
ends of segments (several steps at once, see `Scheduler`), and whatever policies schedule for themselves, such as
messages that take a while. The same trace and seed give the same run.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Requests
from dataclasses import dataclass, field
from typing import Protocol

from roundhouse_sim.cache import Change, PrefixCache
from roundhouse_sim.cost import CostModel
from roundhouse_sim.scheduler import Limits, Scheduler, Segment, Sequence

from benchmarks.routing.traces import BLOCK_TOKENS, Request


class Flight(Sequence):
    """One request on its way. ``streams``: whether the router sees the first token."""

    __slots__ = ("ended_at", "first_at", "number", "replica", "request", "streams")

    def __init__(self, number: int, request: Request, streams: bool) -> None:
        super().__init__(request.prompt_tokens, request.output_tokens, list(request.blocks))
        self.number = number
        self.request = request
        self.streams = streams
        self.replica = -1
        self.first_at = self.ended_at = 0.0


class Replica:
    """One engine. ``slowdown`` multiplies its step times."""

    def __init__(self, index: int, settings: "Settings", slowdown: float, record: bool) -> None:
        self.index = index
        self.slowdown = slowdown
        self.cache = PrefixCache(settings.kv_tokens // BLOCK_TOKENS, record=record)
        self.scheduler = Scheduler(settings.cost, self.cache, BLOCK_TOKENS, settings.limits)
        self.segment: Segment | None = None
        self.version = 0
        self.in_flight = 0
        self.queued: Counter[int] = Counter()
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def match(self, keys: list[int]) -> int:
        """Leading keys that it holds or will hold once everything sent there so far is prefilled."""
        held = self.cache.match(keys)
        while held < len(keys) and keys[held] in self.queued:
            held += 1
        return held

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def kv_used(self) -> float:
        return self.cache.used / self.cache.blocks


@dataclass(frozen=True)
class Settings:
    """``stream_share``: share of requests that stream. ``slow``: replica → factor. ``speed`` compresses arrivals."""

    replicas: int = 8
    kv_tokens: int = 1_200_000
    cost: CostModel = field(default_factory=CostModel)
    limits: Limits = field(default_factory=Limits)
    stream_share: float = 1.0
    slow: tuple[tuple[int, float], ...] = ()
    speed: float = 1.0
    seed: int = 1


class Policy(Protocol):
    """A router. ``attach`` comes first; ``first`` only for requests that stream, ``ended`` always."""

    record: bool  # whether it follows what replicas store and remove

    def attach(self, simulation: "Simulation") -> None: ...

    def pick(self, flight: Flight) -> int:
        """Index of the replica that gets it."""
        ...

    def first(self, flight: Flight) -> None: ...

    def ended(self, flight: Flight) -> None: ...

    def changed(self, replica: Replica, changes: list[Change]) -> None:
        """Blocks that a step of ``replica`` stored and removed; only with ``record``."""
        ...


class Simulation:
    """``run`` once; then ``flights`` tells when each request got its first token and when it ended."""

    def __init__(self, requests: Requests[Request], policy: Policy, settings: Settings) -> None:
        self.now = 0.0
        self.settings = settings
        self.random = random.Random(settings.seed)
        slow = dict(settings.slow)
        self.replicas = [
            Replica(index, settings, slow.get(index, 1.0), policy.record) for index in range(settings.replicas)
        ]
        streams = random.Random(settings.seed + 1)
        self.flights = [
            Flight(number, request._replace(at=request.at / settings.speed), streams.random() < settings.stream_share)
            for number, request in enumerate(requests)
        ]
        self._policy = policy
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = 0
        self._left = len(self.flights)
        policy.attach(self)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do ``action`` in ``delay_s`` seconds."""
        self._counter += 1
        heapq.heappush(self._events, (self.now + delay_s, self._counter, action))

    def run(self) -> None:
        arrivals = iter(self.flights)
        arrival = next(arrivals, None)
        while self._left:
            if arrival is not None and (not self._events or arrival.request.at <= self._events[0][0]):
                self.now = arrival.request.at
                self._arrive(arrival)
                arrival = next(arrivals, None)
            else:
                self.now, _, action = heapq.heappop(self._events)
                action()

    def _arrive(self, flight: Flight) -> None:
        flight.replica = self._policy.pick(flight)
        replica = self.replicas[flight.replica]
        replica.in_flight += 1
        replica.queued.update(flight.request.blocks)
        replica.scheduler.submit(flight)
        if replica.segment is None:
            self._plan(replica)
        elif replica.segment.steps > 1:
            replica.segment.cut(self.now)
            self._schedule(replica, replica.segment)

    def _plan(self, replica: Replica) -> None:
        replica.segment = replica.scheduler.plan(self.now, replica.slowdown)
        if replica.segment is not None:
            self._schedule(replica, replica.segment)

    def _schedule(self, replica: Replica, segment: Segment) -> None:
        """An earlier appointment of the same replica becomes void."""
        replica.version += 1
        version = replica.version
        self.later(segment.end - self.now, lambda: self._finish(replica, version))

    def _finish(self, replica: Replica, version: int) -> None:
        if version != replica.version or replica.segment is None:
            return
        for flight in replica.scheduler.finish(replica.segment):
            assert isinstance(flight, Flight)
            if not flight.first_at:
                self._first(flight, replica)
            if flight.complete:
                replica.scheduler.release(flight)
                replica.in_flight -= 1
                flight.ended_at = self.now
                self._left -= 1
                self._policy.ended(flight)
        if self._policy.record and (changes := replica.cache.take_changes()):
            self._policy.changed(replica, changes)
        self._plan(replica)

    def _first(self, flight: Flight, replica: Replica) -> None:
        flight.first_at = self.now
        for key in flight.request.blocks:
            if replica.queued[key] == 1:
                del replica.queued[key]
            else:
                replica.queued[key] -= 1
        replica.prompt_tokens += flight.prompt_tokens
        replica.cached_tokens += flight.cached_tokens
        if flight.streams:
            self._policy.first(flight)
