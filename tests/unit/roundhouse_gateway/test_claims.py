"""What routing promises of whole fleets, with the real ranking, books and learning over a clock of our own."""

from collections import Counter
from collections.abc import Mapping
from random import Random
from uuid import UUID

from roundhouse_gateway.learning import Shape, Speed
from roundhouse_gateway.pick import Choice, PrefillCost, ReplicaFacts, pick
from roundhouse_kv.books import Books

A, Q = 1.2e-4, 2.1e-9
CHUNK_TOKENS = 64


class Prompt:
    def __init__(self, keys: list[int], conversation: int | None = None) -> None:
        self.keys = keys
        self.tokens = CHUNK_TOKENS * len(keys) + 10
        self._conversation = conversation

    def affinity(self) -> int | None:
        return self._conversation


class FleetOf:
    """Replicas that hold what they were sent, forever; requests stay in flight until told otherwise."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.books = Books(1)
        self.shape = Shape(A, Q)
        self.speeds = [Speed() for _ in range(count)]
        self.held: list[set[int]] = [set() for _ in range(count)]
        self._requests = 0
        self._random = Random(1)

    def pods(self) -> list[UUID]:
        return [UUID(int=index + 1) for index in range(len(self.held))]

    def rank(self, prompt: Prompt) -> list[Choice]:
        pods = self.pods()
        facts = [
            ReplicaFacts(name=f"r{index}", pod_uid=pod, cost=speed.cost(self.shape))
            for index, (pod, speed) in enumerate(zip(pods, self.speeds, strict=True))
        ]
        cached = [CHUNK_TOKENS * self.depth(index, prompt) for index in range(len(pods))]
        return pick(prompt, facts, self.books.loads(pods, self.now), cached, self.now, random=self._random)

    def depth(self, replica: int, prompt: Prompt) -> int:
        held = self.held[replica]
        known = next((at for at, key in enumerate(prompt.keys) if key not in held), len(prompt.keys))
        return known + self.books.expected_depth(self.pods()[replica], prompt.keys, known)

    def send(self, prompt: Prompt) -> tuple[int, list[Choice]]:
        """Picked and booked, in flight from now on; its replica's index."""
        ranking = self.rank(prompt)
        best = ranking[0]
        index = best.replica.pod_uid.int - 1
        self._requests += 1
        expected = prompt.keys[self.depth(index, prompt) :]
        self.books.pick(
            self.now, self._requests, best.replica.pod_uid, 1, prefill_s=best.own_s,
            context_tokens=prompt.tokens, streams=True, expected=expected,
        )  # fmt: skip
        return index, ranking

    def serve(self, prompt: Prompt, slow: Mapping[int, float] | None = None) -> int:
        """Sent, prefilled in the time it takes there (``slow``: how many times longer), and over."""
        index, ranking = self.send(prompt)
        cached = ranking[0].cached_tokens
        busy = PrefillCost(A, Q).seconds(prompt.tokens - cached, cached) * (slow or {}).get(index, 1.0)
        self.now += busy
        self.books.first_event(self.now, self._requests)
        self.books.end(self.now, self._requests)
        self.speeds[index].learn(self.shape, prompt.tokens - cached, cached, busy)
        self.held[index].update(prompt.keys)
        return index


def prompt(number: int, chunks: int = 40, *, follow_up: bool = False) -> Prompt:
    return Prompt([number * 10_000 + at for at in range(chunks)], number if follow_up else None)


def test_a_burst_of_equal_prompts_goes_to_one_replica_until_it_is_dearer_than_another() -> None:
    """Twenty milliseconds apart: waiting for the first one's prefill is a little cheaper than doing it again."""
    fleet = FleetOf(4)
    home, _ = fleet.send(prompt(1))
    picks = []
    for _ in range(100):
        fleet.now += 0.02
        index, ranking = fleet.send(prompt(1))
        picks.append(index)
        total = next(choice.total_s for choice in ranking if choice.replica.pod_uid.int == home + 1)
        assert index == home or total > ranking[0].total_s
    assert picks[:10] == [home] * 10
    assert len(set(picks)) > 1, "what is in flight there makes it dear in the end"


def test_a_cold_replica_gets_its_fair_share_of_new_prompts_and_never_all() -> None:
    fleet = FleetOf(3)
    for number in range(60):
        fleet.serve(prompt(number))
    fleet.held.append(set())
    fleet.speeds.append(Speed())
    picks = Counter(fleet.serve(prompt(1000 + number)) for number in range(200))
    assert 200 / 4 / 2 < picks[3] < 200 / 4 * 2
    turns = Counter(fleet.serve(prompt(number, 44, follow_up=True)) for number in range(60))
    assert turns[3] == 0, "what is cached elsewhere stays there"


def test_one_hot_replica_does_not_end_the_affinity_of_the_others() -> None:
    fleet = FleetOf(4)
    home = {number: fleet.serve(prompt(number)) for number in range(40)}
    assert len(set(home.values())) == 4
    hot = home[0]
    for number in range(100, 104):
        fleet.books.pick(
            fleet.now, number, fleet.pods()[hot], 1, prefill_s=30.0, context_tokens=100_000, streams=True
        )  # fmt: skip
    moved = {
        number
        for number, index in home.items()
        if fleet.rank(prompt(number, 42, follow_up=True))[0].replica.pod_uid.int - 1 != index
    }
    assert moved == {number for number, index in home.items() if index == hot}


def test_a_hung_replica_is_dear_and_not_idle() -> None:
    """Its one request owed a tenth of a second and has not answered for ten."""
    fleet = FleetOf(2)
    index, _ = fleet.send(prompt(1))
    fleet.now += 10.0
    for number in range(2, 12):
        assert fleet.serve(prompt(number)) != index


def test_a_replica_four_times_slower_is_found_within_twenty_requests() -> None:
    fleet = FleetOf(4)
    served = [fleet.serve(prompt(number), {0: 4.0}) for number in range(200)]
    assert 1 <= served.count(0) <= 20
    assert served[100:].count(0) <= 2
