"""Which replica will finish this request first: a pure ranking by seconds.

    total = prefill seconds booked there and unanswered + w · own + d · context tokens in flight
    own   = b + f · (a·n + q·n·(cached + n/2)),  n = prompt tokens − cached

(a, q) is the shape of prefill cost of one model on one kind of GPU, f and b are what one replica makes of it
(`learning`). Load that an engine reports beyond everybody's books counts as unknown requests at mean cost. Replicas
that have the request's adapter loaded are ranked before those that must load it, answering ones before stale ones,
those before hung ones, and those before ones whose breaker is open; what is
not a candidate at all (terminating, draining, still starting) is left out. Totals within two milliseconds of the best
are one near-tie: a conversation then keeps its replica by rendezvous hash, anything else is spread at random.

Formula and d come from a simulation of eight replicas under the Mooncake conversation trace, where they gave 1.6 s of
mean time to first token and the next best policy 2.1 s.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from random import Random
from typing import Final, Protocol
from uuid import UUID

from roundhouse_kv.pod_books import BookedLoad
from roundhouse_kv.records import ReplicaState
from xxhash import xxh3_64_intdigest

SECONDS_PER_CONTEXT_TOKEN: Final = 2e-6
OWN_WEIGHT: Final = 1.25
"""Work that a choice makes weighs more than waiting for work that is under way: it delays whoever comes after, and its
blocks displace what others have cached. So equal prompts in one burst wait for the first of them."""

NEAR_TIE_S: Final = 0.002

_LEAVING: Final = frozenset({"draining", "drained", "stopped"})


class Standing(IntEnum):
    """Rank class of a candidate; lower goes first."""

    GOOD = 0
    UNLOADED = 1
    STALE = 2
    HUNG = 3
    BROKEN = 4


class Reason(StrEnum):
    """Why the first of the ranking is the first."""

    ONLY = "only"
    CACHE = "cache"
    LOAD = "load"
    AFFINITY = "affinity"
    RANDOM = "random"
    ADAPTER = "adapter"
    STALE = "stale"
    HUNG = "hung"
    BROKEN = "breaker"
    RETRY = "retry"


_ONLY: Final = Reason.ONLY  # an enum's members are looked up slowly
_RANDOM: Final = Reason.RANDOM
_AFFINITY: Final = Reason.AFFINITY
_GOOD: Final = Standing.GOOD
_REASON_OF = {
    Standing.UNLOADED: Reason.ADAPTER,
    Standing.STALE: Reason.STALE,
    Standing.HUNG: Reason.HUNG,
    Standing.BROKEN: Reason.BROKEN,
}


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Seconds of prefill on one replica: ``a`` per token, ``q`` per token and token of context, × ``f`` + ``b``."""

    a: float
    q: float
    f: float = 1.0
    b: float = 0.0

    def seconds(self, uncached: float, cached: float) -> float:
        return self.b + self.f * uncached * (self.a + self.q * (cached + uncached / 2))


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What is known of one replica at the last look. ``state`` is its lease's, None when it has none.

    ``closed_until``: its breaker lets nothing through before (monotonic seconds). ``unknown_waiting`` and
    ``unknown_running``: requests that its engine reported beyond the sum of the books. ``adapters``: those loaded.
    ``standing`` follows from the rest, but for the breaker and the adapter that is asked for; None: not a candidate.
    """

    name: str
    pod_uid: UUID
    cost: PrefillCost
    state: ReplicaState | None = "ready"
    stale: bool = False
    hung: bool = False
    terminating: bool = False
    closed_until: float = 0.0
    unknown_waiting: int = 0
    unknown_running: int = 0
    adapters: frozenset[str] = frozenset()
    standing: Standing | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "standing", self._stand())

    def _stand(self) -> Standing | None:
        if self.terminating or self.state in _LEAVING or (self.state == "starting" and not self.stale):
            return None
        if self.stale or self.state is None:
            return Standing.STALE
        return Standing.HUNG if self.hung else Standing.GOOD


class PromptFacts(Protocol):
    """``tokens`` of prompt, estimated. ``affinity`` hashes the conversation so far; None when there is none yet."""

    @property
    def tokens(self) -> int: ...

    def affinity(self) -> int | None: ...


class MeanRequest:
    """What an unknown request is taken for."""

    __slots__ = ("context_tokens", "prefill_s")

    def __init__(self, prefill_s: float = 0.0, context_tokens: float = 0.0) -> None:
        self.prefill_s = prefill_s
        self.context_tokens = context_tokens


NOTHING_KNOWN: Final = MeanRequest()


class Choice:
    """One candidate with its predicted cost in seconds. ``reason`` is set on the first of a ranking only."""

    __slots__ = ("booked_s", "cached_tokens", "context_s", "own_s", "reason", "replica", "standing", "total_s")

    def __init__(
        self,
        replica: ReplicaFacts,
        standing: Standing,
        cached_tokens: int,
        booked_s: float,
        own_s: float,
        context_s: float,
        total_s: float,
    ) -> None:
        self.replica = replica
        self.standing = standing
        self.cached_tokens = cached_tokens
        self.booked_s = booked_s
        self.own_s = own_s
        self.context_s = context_s
        self.total_s = total_s
        self.reason: Reason | None = None

    def __lt__(self, other: "Choice") -> bool:
        if self.standing is other.standing:
            return self.total_s < other.total_s
        return self.standing < other.standing


def pick(
    prompt: PromptFacts,
    replicas: list[ReplicaFacts],
    loads: list[BookedLoad],
    cached: list[int],
    now: float,
    *,
    random: Random,
    mean: MeanRequest = NOTHING_KNOWN,
    adapter: str = "",
) -> list[Choice]:
    """Rank the candidates, best first; empty when there is none.

    ``loads[i]`` (of the request's priority and above) and ``cached[i]`` (prompt tokens predicted to be in its cache)
    belong to ``replicas[i]``. ``adapter``: the one that the request wants, empty for none.
    """
    if not len(replicas) == len(loads) == len(cached):
        raise ValueError("a replica without its load or its cached tokens")
    tokens = prompt.tokens
    ranking: list[Choice] = []
    for i, replica in enumerate(replicas):
        standing = replica.standing
        if standing is None:
            continue
        if adapter and standing is Standing.GOOD and adapter not in replica.adapters:
            standing = Standing.UNLOADED
        if replica.closed_until > now:
            standing = Standing.BROKEN
        load, known = loads[i], cached[i]
        hit = known if known < tokens else tokens - 1
        cost, uncached = replica.cost, tokens - hit
        own_s = cost.seconds(uncached, hit)
        booked_s, context = load.prefill_s, float(load.context_tokens)
        if replica.unknown_waiting or replica.unknown_running:
            booked_s += replica.unknown_waiting * mean.prefill_s
            context += (replica.unknown_waiting + replica.unknown_running) * mean.context_tokens
        context_s = SECONDS_PER_CONTEXT_TOKEN * context
        total_s = booked_s + OWN_WEIGHT * own_s + context_s
        ranking.append(Choice(replica, standing, hit, booked_s, own_s, context_s, total_s))
    if len(ranking) > 1:
        ranking.sort()
    if ranking:
        _settle(ranking, prompt, random)
    return ranking


def _settle(ranking: list[Choice], prompt: PromptFacts, random: Random) -> None:
    """Break the near-tie at the top, and say why the first is the first."""
    best = ranking[0]
    reason = None if best.standing is _GOOD else _REASON_OF.get(best.standing)
    if len(ranking) == 1:
        reason = reason or _ONLY
    elif ranking[1].total_s - best.total_s < NEAR_TIE_S and ranking[1].standing is best.standing:
        affinity = prompt.affinity()
        winner = _winner(ranking, affinity, random)
        if winner:
            best = ranking.pop(winner)
            ranking.insert(0, best)
        reason = reason or (_RANDOM if affinity is None else _AFFINITY)
    elif reason is None:
        hits = [choice.cached_tokens for choice in ranking]
        reason = Reason.CACHE if best.cached_tokens == max(hits) > min(hits) else Reason.LOAD
    best.reason = reason


def _winner(ranking: list[Choice], affinity: int | None, random: Random) -> int:
    """Index of the one that wins the near-tie at the top."""
    tied = 2
    while tied < len(ranking) and _near(ranking[tied], ranking[0]):
        tied += 1
    if affinity is None:
        return int(random.random() * tied)
    return max(range(tied), key=lambda i: xxh3_64_intdigest(ranking[i].replica.pod_uid.bytes, affinity))


def _near(choice: Choice, best: Choice) -> bool:
    return choice.total_s - best.total_s < NEAR_TIE_S and choice.standing is best.standing
