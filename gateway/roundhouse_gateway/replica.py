"""One engine replica as this gateway uses it: where it is, how it answers, how fast it is, what it is known to hold."""

import logging
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from roundhouse_engines.dialect import Dialect, load_dialect
from roundhouse_kv.gateway_feed import SeenLease
from roundhouse_kv.records import Member

from roundhouse_gateway.breaker import Breaker
from roundhouse_gateway.history import LEAST_KEYS, History
from roundhouse_gateway.learning import Shape, Speed
from roundhouse_gateway.pick import ReplicaFacts
from roundhouse_gateway.settings import Patience
from roundhouse_gateway.truth import TruthCheck, Verdict
from roundhouse_gateway.upstream import UpstreamPool

log = logging.getLogger(__name__)

DEFAULT_BLOCK_SIZE = 16
BYTES_PER_TOKEN = 4


class OpenExchange(Protocol):
    """What a replica may tell the requests that run on it."""

    def replica_leaving(self) -> None:
        """Its drain deadline has passed."""
        ...


class Replica:
    """Made when a member appears in the catalogue; `observe` keeps it current; `retire` when the member is gone.

    ``predictable``: its events may be believed and its prompts rendered; else it is routed by ``history``, for the
    ``reason`` given.
    """

    def __init__(self, member: Member, shape: Shape, patience: Patience, clock: Callable[[], float]) -> None:
        self.member = member
        self.name = member.name
        self.epoch = 0
        self.block_size = DEFAULT_BLOCK_SIZE
        self.pod_uid = UUID(member.pod_uid)
        self.dialect: Dialect = load_dialect(member.engine)
        self.pool = UpstreamPool(
            member.address, member.port, connect_s=patience.connect_s, idle_s=patience.upstream_idle_s, clock=clock
        )
        self.breaker = Breaker()
        self.shape = shape
        self.speed = Speed()
        self.truth = TruthCheck()
        self.history = History()
        self.exchanges: set[OpenExchange] = set()
        self.lease: SeenLease | None = None
        self.digest = ""
        self.predictable = False
        self.reason = "no lease yet"
        self._unknown = (0, 0)
        self._reported: object = None
        self.explain_header = b"x-roundhouse-replica: " + member.name.encode() + b"\r\n"
        self.facts = self._facts()

    @property
    def drain_deadline(self) -> float | None:
        """When its streams must have ended (monotonic), None while it is not draining."""
        if self.lease is None or self.lease.lease.state != "draining":
            return None
        return self.lease.heard_at + self.lease.lease.remaining_ms / 1000

    def observe(self, member: Member, seen: SeenLease | None, booked_requests: int) -> bool:
        """A look at catalogue and lease; True when a new engine process is seen.

        ``booked_requests``: in everybody's books, against what the engine reports.
        """
        self.member = member
        restarted = False
        if seen is not None and seen.lease.pod_uid != member.pod_uid:
            seen = None  # an earlier pod's
        if seen is not None and self.lease is not None and seen.lease.epoch != self.lease.lease.epoch:
            self.history.clear()
            self.breaker.succeeded()
            self.truth = TruthCheck()
            restarted = True
        self.lease = seen
        self.epoch = seen.lease.epoch if seen is not None else 0
        self.block_size = (seen.lease.block_size if seen is not None else 0) or DEFAULT_BLOCK_SIZE
        if seen is not None and seen.lease is not self._reported:
            self._reported = seen.lease
            self._unknown = _beyond_books(seen.lease.waiting, seen.lease.running, booked_requests)
            self.history.capacity = max(LEAST_KEYS, seen.lease.kv_tokens * BYTES_PER_TOKEN // 256)
        self.refresh()
        return restarted

    def refresh(self) -> None:
        """Make ``facts`` current after anything changed that goes into them."""
        facts = self._facts()
        if facts != self.facts:
            self.facts = facts

    def _facts(self) -> ReplicaFacts:
        seen = self.lease
        stale = seen is None or seen.stale
        waiting, running = (0, 0) if stale else self._unknown
        return ReplicaFacts(
            name=self.member.name,
            pod_uid=self.pod_uid,
            cost=self.speed.cost(self.shape),
            state=None if seen is None else seen.lease.state,
            stale=stale,
            hung=seen is not None and seen.lease.hung,
            terminating=self.member.terminating,
            closed_until=self.breaker.closed_until,
            unknown_waiting=waiting,
            unknown_running=running,
            adapters=frozenset(seen.lease.adapters) if seen is not None else frozenset(),
        )

    def distrusted(self, verdict: Verdict) -> None:
        """Its engine reported less cached than its events said."""
        log.warning("index_untrue replica=%s verdict=%s", self.name, verdict.name.lower())
        self.predictable = False
        self.reason = "engine reported less cached than its events said"

    def failed(self, now: float) -> None:
        self.breaker.failed(now)
        self.refresh()

    def succeeded(self) -> None:
        if self.breaker.closed_until:
            self.breaker.succeeded()
            self.refresh()
        else:
            self.breaker.succeeded()


def _beyond_books(waiting: int | None, running: int | None, booked: int) -> tuple[int, int]:
    """(waiting, running) that nobody booked; what the engine does not report is not guessed."""
    reported = (waiting or 0) + (running or 0)
    unknown = max(0, reported - booked)
    unknown_waiting = min(unknown, waiting or 0)
    return unknown_waiting, unknown - unknown_waiting
