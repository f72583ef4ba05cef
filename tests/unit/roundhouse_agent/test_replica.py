import msgspec
import pytest
from roundhouse_agent.lease_publisher import PERIOD_S, SPACING_S, due_in
from roundhouse_agent.replica import Engine, HungWatch, Identity, Replica, announces, at_once
from roundhouse_engines.probe import LoadReport
from roundhouse_kv.records import Lease, Progress

IDENTITY = Identity("demo-0", "uid", "6b1f2a3c-0000-4000-8000-000000000001", 77, "0.1.0")


def load(**changes: float) -> LoadReport:
    fields = {"waiting": 0, "running": 0, "kv_used": 0.0, "kv_tokens": 1000, "block_size": 16, "tokens_total": 5}
    return LoadReport(**{**fields, **changes})  # type: ignore[arg-type]


def ready() -> Replica:
    replica = Replica(IDENTITY, lambda: 1_000_000)
    replica.begin(5)
    replica.engine, replica.prepared, replica.load = Engine.ANSWERS, True, load()
    return replica


def lease(**changes: object) -> Lease:
    return msgspec.structs.replace(ready().lease(), **changes)


def test_it_starts_until_the_engine_answers_and_is_prepared() -> None:
    replica = Replica(IDENTITY, lambda: 0)
    assert replica.state == "starting"
    replica.engine = Engine.ANSWERS
    assert replica.state == "starting"
    replica.prepared = True
    assert replica.state == "ready"


@pytest.mark.parametrize("engine", [Engine.ABSENT, Engine.SILENT])
def test_an_engine_that_stops_answering_is_starting_again(engine: Engine) -> None:
    replica = ready()
    replica.engine = engine
    assert replica.state == "starting"
    assert replica.message


def test_unknown_load_is_null_and_never_zero() -> None:
    replica = ready()
    replica.load = None
    assert (replica.lease().waiting, replica.lease().running, replica.lease().kv_used) == (None, None, None)


def test_a_drain_shows_what_remains_and_ends_with_the_epoch() -> None:
    replica = ready()
    replica.drain.start(1_010_000)
    assert (replica.lease().state, replica.lease().remaining_ms) == ("draining", 10_000)
    assert replica.serving
    replica.begin(6)
    assert (replica.lease().state, replica.lease().epoch) == ("starting", 6)


def test_a_drained_replica_stays_drained_when_its_engine_ends() -> None:
    replica = ready()
    replica.drain.start(1_010_000)
    replica.drain.drained = True
    replica.engine = Engine.ABSENT
    assert replica.state == "drained"
    replica.stopped = True
    assert replica.state == "stopped"


def test_progress_shows_only_while_starting() -> None:
    replica = ready()
    replica.progress = Progress(phase="warmup")
    assert replica.lease().progress is None
    replica.engine = Engine.ABSENT
    assert replica.lease().progress == Progress(phase="warmup")


def test_running_requests_without_progress_for_the_limit_are_hung() -> None:
    watch = HungWatch(30.0)
    assert not watch.observe(load(running=1), 0, 0.0)
    assert not watch.observe(load(running=1), 0, 29.0)
    assert watch.observe(load(running=1), 0, 30.0)


@pytest.mark.parametrize(("now", "batches"), [(load(running=1, tokens_total=6), 0), (load(running=1), 1)])
def test_a_token_or_a_kv_event_is_progress(now: LoadReport, batches: int) -> None:
    watch = HungWatch(30.0)
    watch.observe(load(running=1), 0, 0.0)
    assert not watch.observe(now, batches, 30.0)
    assert watch.observe(now, batches, 60.0)


def test_an_idle_engine_is_never_hung() -> None:
    watch = HungWatch(30.0)
    watch.observe(load(), 0, 0.0)
    assert not watch.observe(load(), 0, 100.0)
    assert not watch.observe(load(running=1), 0, 101.0)


def test_an_engine_that_goes_silent_with_running_requests_becomes_hung() -> None:
    watch = HungWatch(30.0)
    watch.observe(load(running=1), 0, 0.0)
    assert not watch.observe(None, 0, 10.0)
    assert watch.observe(None, 0, 30.0)


def test_an_engine_that_goes_silent_while_idle_is_not_hung() -> None:
    watch = HungWatch(30.0)
    watch.observe(load(), 0, 0.0)
    assert not watch.observe(None, 0, 100.0)


@pytest.mark.parametrize("change", [{"state": "draining"}, {"epoch": 6}, {"hung": True}])
def test_a_change_of_state_goes_out_at_once(change: dict[str, object]) -> None:
    assert at_once(lease(), lease(**change))
    assert due_in(lease(), lease(**change), 0.0) == 0.0


@pytest.mark.parametrize(
    "change", [{"waiting": 3}, {"running": 1}, {"kv_used": 0.06}, {"waiting": None}, {"profile": "x"}]
)
def test_a_change_of_load_goes_out_at_most_four_times_a_second(change: dict[str, object]) -> None:
    assert announces(lease(), lease(**change))
    assert due_in(lease(), lease(**change), 0.1) == pytest.approx(SPACING_S - 0.1)


@pytest.mark.parametrize("change", [{}, {"kv_used": 0.04}, {"kv_seq": 9}, {"remaining_ms": 5}])
def test_what_does_not_matter_waits_for_the_next_second(change: dict[str, object]) -> None:
    assert not announces(lease(), lease(**change))
    assert due_in(lease(), lease(**change), 0.4) == pytest.approx(PERIOD_S - 0.4)
