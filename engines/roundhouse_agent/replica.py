"""Everything the agent knows of its replica, and the lease that says it. Plain state; tasks write into it.

State: ``starting`` until the engine answers and has been prepared (profile and self-test), ``ready``, then
``draining`` and ``drained`` while a drain runs, ``stopped`` at the end. An engine that stops answering is ``starting``
again. Load is None while unknown, never zero.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from roundhouse_engines.probe import LoadReport
from roundhouse_kv.records import Lease, Progress, ReplicaState

from roundhouse_agent.drain import Drain

KV_STEP: Final = 0.05  # a change of KV use beyond this is announced


class Engine(Enum):
    """What the last health check saw."""

    UNSEEN = auto()  # none yet in this epoch
    ABSENT = auto()  # nobody listens, or it says that it is dead
    SILENT = auto()  # it listens and does not answer
    ANSWERS = auto()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this replica is; fixed for the agent's life. ``source`` is this start of the agent."""

    replica: str
    replica_uid: str
    pod_uid: str
    source: int
    agent_version: str


@dataclass(slots=True)
class KeySummary:
    """What the KV log of this source has said so far."""

    seq: int = 0
    count: int = 0
    xor: int = 0


@dataclass(slots=True)
class HungWatch:
    """Hung: requests run, and neither a token nor a KV event came for ``limit_s``."""

    limit_s: float
    _progress: int = -1
    _since: float = 0.0

    def observe(self, load: LoadReport | None, kv_batches: int, now: float) -> bool:
        """``load`` None: unknown, which keeps the count of seconds running only while requests were running."""
        if load is None:
            return self._progress >= 0 and now - self._since >= self.limit_s
        progress = load.tokens_total + kv_batches
        if load.running == 0:
            self._progress = -1
            return False
        if progress != self._progress:
            self._progress, self._since = progress, now
        return now - self._since >= self.limit_s


@dataclass(slots=True)
class Replica:
    """``now_ms`` gives Unix milliseconds. ``changed`` is set whenever the lease may have to be sent."""

    identity: Identity
    now_ms: Callable[[], int]
    keys: KeySummary = field(default_factory=KeySummary)
    drain: Drain = field(default_factory=Drain)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    epoch: int = 0
    engine: Engine = Engine.UNSEEN
    prepared: bool = False
    stopped: bool = False
    hung: bool = False
    load: LoadReport | None = None
    profile: str = ""
    stack: Mapping[str, str] = field(default_factory=dict)
    progress: Progress | None = None
    problem: str = ""
    _look: asyncio.Event = field(default_factory=asyncio.Event)

    def looked(self) -> None:
        """The engine has been looked at once more; wakes whoever awaits `next_look`."""
        look, self._look = self._look, asyncio.Event()
        look.set()
        self.changed.set()

    async def next_look(self) -> None:
        await self._look.wait()

    def begin(self, epoch: int) -> None:
        """The engine has been started anew: what was known of the old process is void, and so is its drain."""
        self.epoch = epoch
        self.engine, self.prepared, self.hung, self.load = Engine.UNSEEN, False, False, None
        self.drain, self.problem, self.progress = Drain(), "", None
        self.changed.set()

    @property
    def state(self) -> ReplicaState:
        if self.stopped:
            return "stopped"
        if self.drain.active:
            return "drained" if self.drain.drained else "draining"
        return "ready" if self.serving else "starting"

    @property
    def serving(self) -> bool:
        """The engine answers and has been prepared."""
        return self.engine is Engine.ANSWERS and self.prepared

    @property
    def message(self) -> str:
        if self.serving or self.stopped:
            return ""
        if self.problem:
            return self.problem
        if self.engine is Engine.SILENT:
            return "the engine does not answer /health"
        return "the engine's self-test runs" if self.engine is Engine.ANSWERS else "the engine does not listen yet"

    def lease(self) -> Lease:
        load = self.load
        return Lease(
            replica=self.identity.replica,
            replica_uid=self.identity.replica_uid,
            pod_uid=self.identity.pod_uid,
            agent_version=self.identity.agent_version,
            source=self.identity.source,
            epoch=self.epoch,
            state=self.state,
            remaining_ms=self.drain.remaining_ms(self.now_ms()),
            hung=self.hung,
            message=self.message,
            profile=self.profile,
            progress=None if self.serving else self.progress,
            waiting=load.waiting if load else None,
            running=load.running if load else None,
            kv_used=load.kv_used if load else None,
            kv_tokens=load.kv_tokens if load else 0,
            block_size=load.block_size if load else 0,
            stack=dict(self.stack),
            kv_seq=self.keys.seq,
            key_count=self.keys.count,
            key_xor=self.keys.xor,
        )


def announces(old: Lease | None, new: Lease) -> bool:
    """Whether the difference is worth a message to the readers."""
    return old is None or _marks(old) != _marks(new) or abs((old.kv_used or 0) - (new.kv_used or 0)) > KV_STEP


def at_once(old: Lease | None, new: Lease) -> bool:
    """Whether it must not wait for the next turn."""
    return old is None or (old.state, old.epoch, old.hung) != (new.state, new.epoch, new.hung)


def _marks(lease: Lease) -> tuple[object, ...]:
    return (
        lease.state, lease.epoch, lease.source, lease.hung, lease.profile, lease.waiting, lease.running,
        lease.kv_used is None, lease.progress,
    )  # fmt: skip
