import gzip
import json
from pathlib import Path

import pytest

from benchmarks.harness import BenchmarkError
from benchmarks.routing import traces
from benchmarks.routing.oracle import EarliestCompletion
from benchmarks.routing.peers import BoundedLoadHash, Dynamo, LlmD, SglangCacheAware
from benchmarks.routing.policies import LeastRequests, LongestPrefix, RandomOfTwo, RoundRobin
from benchmarks.routing.results import summarise
from benchmarks.routing.roundhouse import Roundhouse
from benchmarks.routing.simulation import Policy, Settings, Simulation
from benchmarks.routing.traces import Request

POLICIES = (
    RoundRobin, RandomOfTwo, LeastRequests, LongestPrefix, BoundedLoadHash, SglangCacheAware, LlmD, Dynamo,
    EarliestCompletion, Roundhouse, lambda: Roundhouse(gateways=3, event_lag_s=0.04),
)  # fmt: skip


def conversations(count: int, turns: int, pace: float) -> list[Request]:
    """Each conversation grows by four blocks a turn."""
    requests = [
        Request(
            at=pace * (turn * count + number),
            prompt_tokens=512 * (4 * turn + 4) + 100,
            output_tokens=20,
            blocks=tuple(number * 1000 + block for block in range(4 * turn + 4)),
        )
        for turn in range(turns)
        for number in range(count)
    ]
    return sorted(requests, key=lambda request: request.at)


def simulate(policy: Policy, requests: list[Request], settings: Settings | None = None) -> Simulation:
    simulation = Simulation(requests, policy, settings or Settings(replicas=4))
    simulation.run()
    return simulation


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stream_share", [1.0, 0.5])
def test_every_request_ends_and_nothing_is_left(policy: type[Policy], stream_share: float) -> None:
    settings = Settings(replicas=4, kv_tokens=60_000, stream_share=stream_share)
    simulation = simulate(policy(), conversations(20, 5, 0.1), settings)
    assert all(flight.ended_at >= flight.first_at > flight.request.at for flight in simulation.flights)
    for replica in simulation.replicas:
        assert (replica.in_flight, replica.cache.used, replica.scheduler.running, len(replica.queued)) == (0, 0, 0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_can_be_repeated(policy: type[Policy]) -> None:
    requests = conversations(10, 4, 0.1)
    assert summarise(simulate(policy(), requests)) == summarise(simulate(policy(), requests))


@pytest.mark.parametrize("policy", [LongestPrefix, LlmD, EarliestCompletion, Roundhouse])
def test_conversations_find_their_replica_again(policy: type[Policy]) -> None:
    simulation = simulate(policy(), conversations(8, 6, 0.5))
    assert summarise(simulation).hit > 0.7
    assert summarise(simulate(RoundRobin(), conversations(9, 6, 0.5))).hit < 0.4


def test_a_slow_replica_gets_less_from_the_policy_that_measures() -> None:
    settings = Settings(replicas=4, slow=((0, 4.0),))
    simulation = simulate(Roundhouse(), conversations(60, 6, 0.05), settings)
    loads = [replica.prompt_tokens for replica in simulation.replicas]
    assert loads[0] < 0.7 * sum(loads) / 4


def test_gateways_that_share_books_do_as_well_as_one() -> None:
    requests = conversations(60, 6, 0.04)
    one, four = (summarise(simulate(Roundhouse(gateways=n), requests)).ttft_mean_s for n in (1, 4))
    assert four < 1.3 * one


def test_bounded_load_passes_over_a_full_replica() -> None:
    same = [Request(0.001 * number, 700, 200, (1, 2), "") for number in range(40)]
    simulation = simulate(BoundedLoadHash(), same)
    assert all(replica.prompt_tokens for replica in simulation.replicas)


def test_mooncake_is_read_and_its_stamps_are_spread(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    rows = [{"timestamp": 3000, "input_length": 1100, "output_length": 0, "hash_ids": [1, 2, 3]}] * 50
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    spread = traces.mooncake(path.with_suffix(""), seed=1)
    assert {(r.prompt_tokens, r.output_tokens, r.blocks) for r in spread} == {(1100, 1, (1, 2))}
    assert len({r.at for r in spread}) == 50
    assert all(3.0 <= r.at < 6.0 for r in spread)
    assert spread == sorted(spread, key=lambda r: r.at)
    assert {r.at for r in traces.mooncake(path, spread_s=0.0)} == {3.0}


def test_azure_is_read(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:05.0000000,3180,0\n"
    )
    first, second = traces.azure(path)
    assert (first.at, first.prompt_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.at == pytest.approx(1.02004)
    assert second.output_tokens == 1


def test_sessions_share_blocks_within_themselves_and_their_tools_with_others(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    turns = [[0.0, 2048, 5, [[0, 32]], 0, 0, "", []], [700.0, 3072, 5, [[0, 32], [90, 16]], 0, 0, "", []]]
    helper = {"t": 1.0, "type": "subagent", "requests": [[0.0, 1024, 5, [[0, 16]], 0, 0, "", []]]}
    session = {"tool": 600, "sys": 0, "req": [turns[0], helper, turns[1]]}
    path.write_text("\n".join(json.dumps({"id": name, **session}) for name in ("a", "b")))
    requests = traces.sessions(path, count=2, window_s=1e9, longest_gap_s=600.0)
    by_owner: dict[str, list[Request]] = {}
    for request in requests:
        by_owner.setdefault(request.session, []).append(request)
    one, two = by_owner["a#0"], by_owner["b#0"]
    assert one[1].blocks[:4] == one[0].blocks
    assert one[1].at - one[0].at == pytest.approx(600.0)
    assert one[0].blocks[0] == two[0].blocks[0]
    assert one[0].blocks[1] != two[0].blocks[1]
    assert by_owner["a#0/1.0"][0].blocks[0] not in one[0].blocks


def test_missing_traces_say_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RH_TRACES", str(tmp_path))
    with pytest.raises(BenchmarkError, match="RH_TRACES"):
        traces.mooncake(traces.trace_folder() / "mooncake_conversation_trace.jsonl")
