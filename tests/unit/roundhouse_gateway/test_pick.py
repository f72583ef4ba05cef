"""Ranking of replicas: the cost formula as a table, standings, near-ties, and properties that hold for any fleet."""

from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundhouse_gateway.pick import (
    NEAR_TIE_S,
    OWN_WEIGHT,
    SECONDS_PER_CONTEXT_TOKEN,
    Choice,
    MeanRequest,
    PrefillCost,
    Reason,
    ReplicaFacts,
    Standing,
    pick,
)
from roundhouse_kv.pod_books import BookedLoad

A, Q = 1.2e-4, 2.1e-9
COST = PrefillCost(A, Q)
NOW = 100.0


@dataclass
class Prompt:
    tokens: int = 1000
    conversation: int | None = None

    def affinity(self) -> int | None:
        return self.conversation


def replica(number: int, **changes: object) -> ReplicaFacts:
    return ReplicaFacts(name=f"r{number}", pod_uid=UUID(int=number + 1), cost=changes.pop("cost", COST), **changes)  # type: ignore[arg-type]


def rank(
    replicas: list[ReplicaFacts],
    loads: list[BookedLoad] | None = None,
    cached: list[int] | None = None,
    prompt: Prompt | None = None,
    seed: int = 0,
    mean: MeanRequest | None = None,
    adapter: str = "",
) -> list[Choice]:
    return pick(
        prompt or Prompt(),
        replicas,
        loads or [BookedLoad()] * len(replicas),
        cached or [0] * len(replicas),
        NOW,
        random=Random(seed),
        mean=mean or MeanRequest(),
        adapter=adapter,
    )


def names(ranking: list[Choice]) -> list[str]:
    return [choice.replica.name for choice in ranking]


@pytest.mark.parametrize(
    ("tokens", "cached", "load", "cost", "booked", "own", "context"),
    [
        (1000, 0, BookedLoad(), COST, 0.0, A * 1000 + Q * 1000 * 500, 0.0),
        (1000, 600, BookedLoad(), COST, 0.0, A * 400 + Q * 400 * (600 + 200), 0.0),
        (1000, 0, BookedLoad(prefill_s=2.5), COST, 2.5, A * 1000 + Q * 1000 * 500, 0.0),
        (1000, 0, BookedLoad(context_tokens=50_000), COST, 0.0, A * 1000 + Q * 1000 * 500, 0.1),
        (1000, 0, BookedLoad(), PrefillCost(A, Q, f=3.0, b=0.01), 0.0, 0.01 + 3 * (A * 1000 + Q * 1000 * 500), 0.0),
        (1000, 5000, BookedLoad(), COST, 0.0, A * 1 + Q * 1 * (999 + 0.5), 0.0),
        (1, 1, BookedLoad(), COST, 0.0, A + Q * 0.5, 0.0),
    ],
)  # fmt: skip
def test_cost_is_booked_plus_own_plus_context(
    tokens: int, cached: int, load: BookedLoad, cost: PrefillCost, booked: float, own: float, context: float
) -> None:
    (choice,) = rank([replica(0, cost=cost)], [load], [cached], Prompt(tokens))
    assert choice.booked_s == pytest.approx(booked)
    assert choice.own_s == pytest.approx(own)
    assert choice.context_s == pytest.approx(context)
    assert choice.total_s == pytest.approx(booked + OWN_WEIGHT * own + context)


def test_cached_replica_wins_while_waiting_there_is_cheaper_than_computing() -> None:
    saved = A * 900 + Q * 900 * 550
    for queue, winner, reason in ((saved * 0.5, "r0", Reason.CACHE), (saved * 2, "r1", Reason.LOAD)):
        ranking = rank([replica(0), replica(1)], [BookedLoad(prefill_s=queue), BookedLoad()], [900, 0])
        assert (names(ranking)[0], ranking[0].reason) == (winner, reason)


def test_context_in_flight_counts_two_microseconds_a_token() -> None:
    assert SECONDS_PER_CONTEXT_TOKEN == 2e-6
    ranking = rank([replica(0), replica(1)], [BookedLoad(context_tokens=2000), BookedLoad()])
    assert names(ranking) == ["r1", "r0"]


@pytest.mark.parametrize(
    "changes",
    [
        {"terminating": True},
        {"state": "starting"},
        {"state": "draining"},
        {"state": "drained"},
        {"state": "stopped"},
        {"state": "draining", "stale": True},
        {"state": "starting", "closed_until": NOW + 1},
    ],
)
def test_what_is_leaving_or_not_there_yet_is_no_candidate(changes: dict[str, object]) -> None:
    assert rank([replica(0, **changes)]) == []
    assert names(rank([replica(0, **changes), replica(1)])) == ["r1"]


@pytest.mark.parametrize(
    ("changes", "standing", "reason"),
    [
        ({}, Standing.GOOD, Reason.ONLY),
        ({"stale": True}, Standing.STALE, Reason.STALE),
        ({"state": None}, Standing.STALE, Reason.STALE),
        ({"state": "starting", "stale": True}, Standing.STALE, Reason.STALE),
        ({"hung": True}, Standing.HUNG, Reason.HUNG),
        ({"closed_until": NOW + 0.1}, Standing.BROKEN, Reason.BROKEN),
        ({"closed_until": NOW}, Standing.GOOD, Reason.ONLY),
        ({"closed_until": NOW + 0.1, "stale": True}, Standing.BROKEN, Reason.BROKEN),
    ],
)
def test_standing_of_a_single_candidate(changes: dict[str, object], standing: Standing, reason: Reason) -> None:
    (choice,) = rank([replica(0, **changes)])
    assert (choice.standing, choice.reason) == (standing, reason)


def test_good_before_stale_before_hung_before_broken_whatever_they_cost() -> None:
    replicas = [replica(0, closed_until=NOW + 9), replica(1, hung=True), replica(2, stale=True), replica(3)]
    loads = [BookedLoad(prefill_s=seconds) for seconds in (0.0, 10.0, 20.0, 30.0)]
    ranking = rank(replicas, loads, [900, 0, 0, 0])
    assert names(ranking) == ["r3", "r2", "r1", "r0"]
    assert [choice.reason for choice in ranking[1:]] == [None, None, None]


def test_a_replica_with_the_adapter_loaded_goes_first_whatever_it_costs() -> None:
    fleet = [replica(0), replica(1, adapters=frozenset({"sql", "chat"})), replica(2, stale=True)]
    loads = [BookedLoad(), BookedLoad(prefill_s=5.0), BookedLoad()]
    assert names(rank(fleet, loads, adapter="sql")) == ["r1", "r0", "r2"]
    assert names(rank(fleet, loads)) == ["r0", "r1", "r2"]
    ranking = rank(fleet, loads, adapter="none has it")
    assert (ranking[0].replica.name, ranking[0].standing, ranking[0].reason) == (
        "r0",
        Standing.UNLOADED,
        Reason.ADAPTER,
    )


def test_a_tie_with_a_lower_standing_is_no_tie() -> None:
    for seed in range(20):
        assert names(rank([replica(0, stale=True), replica(1)], seed=seed)) == ["r1", "r0"]


def test_near_tie_of_a_conversation_keeps_its_replica() -> None:
    replicas = [replica(number) for number in range(4)]
    loads = [BookedLoad(prefill_s=s) for s in (0.0, 0.0005, 0.0015, NEAR_TIE_S * 1.01)]
    winners = set()
    for conversation in range(64):
        firsts = {names(rank(replicas, loads, prompt=Prompt(conversation=conversation), seed=s))[0] for s in range(5)}
        assert len(firsts) == 1
        winners |= firsts
    assert winners == {"r0", "r1", "r2"}
    assert rank(replicas, loads, prompt=Prompt(conversation=1))[0].reason is Reason.AFFINITY


def test_conversation_moves_only_when_its_replica_goes() -> None:
    replicas = [replica(number) for number in range(5)]
    for conversation in range(40):
        before = names(rank(replicas, prompt=Prompt(conversation=conversation)))[0]
        left = [r for r in replicas if r.name != "r4"]
        after = names(rank(left, prompt=Prompt(conversation=conversation)))[0]
        assert after == before or before == "r4"


def test_near_tie_without_conversation_is_spread_at_random() -> None:
    ranking = [rank([replica(0), replica(1)], seed=seed)[0] for seed in range(40)]
    assert {choice.replica.name for choice in ranking} == {"r0", "r1"}
    assert {choice.reason for choice in ranking} == {Reason.RANDOM}


def test_near_tie_keeps_the_order_of_the_rest() -> None:
    replicas = [replica(number) for number in range(3)]
    loads = [BookedLoad(prefill_s=s) for s in (0.5, 0.0, 0.25)]
    assert names(rank(replicas, loads)) == ["r1", "r2", "r0"]


def test_near_tie_of_stale_replicas_is_still_called_stale() -> None:
    assert rank([replica(0, stale=True), replica(1, stale=True)])[0].reason is Reason.STALE


def test_load_beyond_the_books_counts_as_mean_requests() -> None:
    unknown = replica(0, unknown_waiting=2, unknown_running=3)
    (choice,) = rank([unknown], [BookedLoad(1.0, 100)], mean=MeanRequest(0.5, 1000.0))
    assert choice.booked_s == pytest.approx(1.0 + 2 * 0.5)
    assert choice.context_s == pytest.approx(2e-6 * (100 + 5 * 1000))


def test_nobody_there_is_an_empty_ranking() -> None:
    assert rank([]) == []


def test_uneven_inputs_are_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="without"):
        pick(Prompt(), [replica(0)], [], [0], NOW, random=Random(0))


seconds = st.floats(0, 100)
facts = st.builds(
    replace,
    st.just(replica(0)),
    cost=st.builds(PrefillCost, st.floats(1e-6, 1e-2), st.floats(0, 1e-6), st.floats(0.1, 10), st.floats(0, 0.5)),
    state=st.sampled_from(["ready", "starting", "draining", "drained", "stopped", None]),
    stale=st.booleans(),
    hung=st.booleans(),
    terminating=st.booleans(),
    closed_until=st.sampled_from([0.0, NOW - 1, NOW + 1]),
)


@given(
    st.lists(st.tuples(facts, st.builds(BookedLoad, seconds, st.integers(0, 10**6)), st.integers(0, 5000)), max_size=8),
    st.integers(1, 4000),
    st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    st.integers(0, 2**32),
)
def test_ranking_of_any_fleet(
    fleet: list[tuple[ReplicaFacts, BookedLoad, int]], tokens: int, conversation: int | None, seed: int
) -> None:
    replicas = [replace(f, name=f"r{i}", pod_uid=UUID(int=i + 1)) for i, (f, _, _) in enumerate(fleet)]
    prompt = Prompt(tokens, conversation)
    ranking = rank(replicas, [load for _, load, _ in fleet], [hit for _, _, hit in fleet], prompt, seed)
    assert sorted(names(ranking)) == sorted(r.name for r in replicas if r.standing is not None)
    standings = [choice.standing for choice in ranking]
    assert standings == sorted(standings)
    for choice in ranking:
        assert 0 <= choice.cached_tokens < tokens
        assert choice.total_s == pytest.approx(choice.booked_s + OWN_WEIGHT * choice.own_s + choice.context_s)
    if ranking:
        peers = [choice.total_s for choice in ranking if choice.standing is standings[0]]
        assert ranking[0].total_s - min(peers) < NEAR_TIE_S
        assert ranking[0].reason is not None
        assert peers[1:] == sorted(peers[1:])


@given(st.integers(2, 100_000), st.integers(0, 100_000), st.integers(0, 100_000))
def test_more_cache_never_costs_more(tokens: int, one: int, other: int) -> None:
    less, more = sorted((one, other))
    (a,), (b,) = (
        rank([replica(0)], cached=[less], prompt=Prompt(tokens)),
        rank([replica(0)], cached=[more], prompt=Prompt(tokens)),
    )
    assert b.own_s <= a.own_s + 1e-12
