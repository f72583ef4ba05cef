"""Ours: the gateway's real ``pick``, learning and books, books messages as real bytes, any number of gateways.

Requests reach the gateways in turn. What one books the others learn by its messages, ``delay_s`` later, coalesced as
the books demand; each sends its table every second. What replicas hold is known by their events, published when a step
ends and seen ``event_lag_s`` later; until then the books' expected keys stand in, as many as cover the same text as in
the product (`EXPECTED_BLOCKS`). Prompt lengths are known exactly; answers are taken for as long as they are on average.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import Final
from uuid import UUID

from roundhouse_gateway.learning import Shape, Speed, busy_share, start_shape
from roundhouse_gateway.pick import Choice, MeanRequest, ReplicaFacts, pick
from roundhouse_kv.books import Books
from roundhouse_kv.books_wire import MAX_EXPECTED_KEYS, decode_message, encode_message
from roundhouse_sim.cache import Change, Removed, Stored

from benchmarks.routing.policies import BasePolicy
from benchmarks.routing.simulation import Flight, Replica, Simulation
from benchmarks.routing.traces import BLOCK_TOKENS

MODEL_AND_GPUS: Final = (70_000_000_000, 80, 8192, "a100", 8)
CHUNK_TOKENS: Final = 64  # about 256 bytes
EXPECTED_BLOCKS: Final = MAX_EXPECTED_KEYS * CHUNK_TOKENS // BLOCK_TOKENS
TABLE_S: Final = 1.0
CLOCK_TICK_S: Final = 1e-6
REFRESH_S: Final = 0.1
MEAN_GAIN: Final = 0.05
START_ANSWER_TOKENS: Final = 200.0
EPOCH: Final = 1


class PromptFacts:
    """What `pick` asks of a prompt; a conversation is known by all but its last block."""

    def __init__(self, flight: Flight) -> None:
        self.tokens = flight.prompt_tokens
        self._blocks = flight.request.blocks

    def affinity(self) -> int | None:
        return self._blocks[-2] if len(self._blocks) > 1 else None


class Presence:
    """Which blocks each replica holds, as its events told."""

    def __init__(self, simulation: Simulation, lag_s: float) -> None:
        self._simulation = simulation
        self._lag_s = lag_s
        self._held: list[set[int]] = [set() for _ in simulation.replicas]

    def changed(self, replica: Replica, changes: list[Change]) -> None:
        if self._lag_s:
            self._simulation.later(self._lag_s, lambda: self._apply(replica.index, changes))
        else:
            self._apply(replica.index, changes)

    def depth(self, replica: int, keys: Sequence[int]) -> int:
        held = self._held[replica]
        return next((depth for depth, key in enumerate(keys) if key not in held), len(keys))

    def _apply(self, replica: int, changes: list[Change]) -> None:
        held = self._held[replica]
        for change in changes:
            if isinstance(change, Stored):
                assert isinstance(change.owner, Flight)
                held.update(change.owner.keys[change.start : change.stop])
            elif isinstance(change, Removed):
                held.difference_update(change.keys)


class Gateway:
    """One gateway: its books, what it learned, and what it did with its own requests."""

    def __init__(self, simulation: Simulation, incarnation: int, presence: Presence, pods: Sequence[UUID]) -> None:
        self.books = Books(incarnation)
        self._simulation = simulation
        self._presence = presence
        self._pods = pods
        self._random = Random(incarnation)
        self._shape = Shape(*start_shape(*MODEL_AND_GPUS))
        self._speeds = {pod: Speed() for pod in pods}
        self._refreshed_at = -math.inf
        self._facts: list[ReplicaFacts] = []
        self._answer_tokens = START_ANSWER_TOKENS
        self._choices: dict[int, tuple[Choice, float]] = {}
        self._first_event_s: dict[int, float] = {}

    def pick(self, flight: Flight) -> int:
        now = self._simulation.now
        if now - self._refreshed_at >= REFRESH_S:
            self._refresh(now)
        keys = flight.request.blocks
        held = [self._presence.depth(index, keys) for index in range(len(self._pods))]
        depths = [
            depth + self.books.expected_depth(pod, keys, depth) if depth < len(keys) else depth
            for pod, depth in zip(self._pods, held, strict=True)
        ]
        loads = [self.books.load(pod, now) for pod in self._pods]
        cached = [depth * BLOCK_TOKENS for depth in depths]
        best = pick(PromptFacts(flight), self._facts, loads, cached, now, random=self._random, mean=MeanRequest())[0]
        index = self._pods.index(best.replica.pod_uid)
        self._choices[flight.number] = best, now
        self.books.pick(
            now,
            flight.number,
            best.replica.pod_uid,
            EPOCH,
            prefill_s=best.own_s,
            context_tokens=int(flight.prompt_tokens + self._answer_tokens),
            streams=flight.streams,
            expected=keys[depths[index] : depths[index] + EXPECTED_BLOCKS],
        )
        return index

    def first(self, flight: Flight) -> None:
        now = self._simulation.now
        self._first_event_s[flight.number] = now - self._choices[flight.number][1]
        self.books.first_event(now, flight.number)

    def ended(self, flight: Flight) -> None:
        """Engines report at the end what was cached; only streams tell how long prefill took."""
        now = self._simulation.now
        choice, _ = self._choices.pop(flight.number)
        first_event_s = self._first_event_s.pop(flight.number, 0.0)
        self._answer_tokens += MEAN_GAIN * (flight.output_tokens - self._answer_tokens)
        cached = flight.cached_tokens
        uncached, busy_s = 0, 0.0
        if first_event_s:
            uncached = max(1, flight.prompt_tokens - cached)
            own_s = choice.replica.cost.seconds(uncached, cached)
            busy_s = busy_share(first_event_s, choice.booked_s, own_s)
        else:
            self.books.first_event(now, flight.number)
        self.books.end(now, flight.number, uncached_tokens=uncached, cached_tokens=cached, busy_s=busy_s)

    def _refresh(self, now: float) -> None:
        self._refreshed_at = now
        for sample in self.books.take_samples():
            speed = self._speeds[sample.pod_uid]
            speed.learn(self._shape, sample.uncached_tokens, sample.cached_tokens, sample.busy_s)
        self._facts = [
            ReplicaFacts(name=str(pod), pod_uid=pod, cost=self._speeds[pod].cost(self._shape)) for pod in self._pods
        ]


class Mail:
    """Carries books messages between gateways; the bytes are the product's."""

    def __init__(self, simulation: Simulation, gateways: Sequence[Gateway], delay_s: float) -> None:
        self._simulation = simulation
        self._gateways = gateways
        self._delay_s = delay_s
        self._held_back: set[int] = set()
        for number in range(len(gateways)):
            self._send_table(number)

    def flush(self, number: int) -> None:
        """Send what the books have to say, now or as soon as they may."""
        books, now = self._gateways[number].books, self._simulation.now
        message = books.outbox(now)
        if message is not None:
            self._send(number, message)
        elif (due := books.outbox_due(now)) is not None and number not in self._held_back:
            self._held_back.add(number)
            self._simulation.later(max(due, CLOCK_TICK_S), lambda: self._flush_held(number))

    def _flush_held(self, number: int) -> None:
        self._held_back.discard(number)
        self.flush(number)

    def _send_table(self, number: int) -> None:
        books = self._gateways[number].books
        books.expire(self._simulation.now)
        self._send(number, encode_message(books.table(self._simulation.now)))
        self._simulation.later(TABLE_S, lambda: self._send_table(number))

    def _send(self, number: int, data: bytes) -> None:
        if len(self._gateways) > 1:
            self._simulation.later(self._delay_s, lambda: self._deliver(number, data))

    def _deliver(self, sender: int, data: bytes) -> None:
        message = decode_message(data)
        for number, gateway in enumerate(self._gateways):
            if number != sender:
                gateway.books.apply(message, self._simulation.now)


class Roundhouse(BasePolicy):
    record = True

    def __init__(self, gateways: int = 1, delay_s: float = 0.005, event_lag_s: float = 0.0) -> None:
        self._count = gateways
        self._delay_s = delay_s
        self._event_lag_s = event_lag_s

    def attach(self, simulation: Simulation) -> None:
        super().attach(simulation)
        self._presence = Presence(simulation, self._event_lag_s)
        pods = [UUID(int=index + 1) for index in range(len(simulation.replicas))]
        self._gateways = [Gateway(simulation, number + 1, self._presence, pods) for number in range(self._count)]
        self._mail = Mail(simulation, self._gateways, self._delay_s)

    def pick(self, flight: Flight) -> int:
        number = flight.number % self._count
        choice = self._gateways[number].pick(flight)
        self._mail.flush(number)
        return choice

    def first(self, flight: Flight) -> None:
        self._gateways[flight.number % self._count].first(flight)
        self._mail.flush(flight.number % self._count)

    def ended(self, flight: Flight) -> None:
        self._gateways[flight.number % self._count].ended(flight)
        self._mail.flush(flight.number % self._count)

    def changed(self, replica: Replica, changes: list[Change]) -> None:
        self._presence.changed(replica, changes)
