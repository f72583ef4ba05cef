"""What the plan makes of objects that the API server should have refused, and a few of its finer points."""

from typing import Any

from roundhouse_kv.records import ServiceEntry
from roundhouse_operator.cluster import Obj
from roundhouse_operator.live import Live
from roundhouse_operator.plan import Observed, Plan, plan
from roundhouse_operator.timestamps import to_timestamp

from tests.unit.roundhouse_operator.world import SETTINGS, START, service


def made(**changes: Any) -> Obj:
    obj = service(**changes)
    obj["metadata"] |= {"uid": "s", "generation": 1, "creationTimestamp": to_timestamp(START)}
    return obj


def condition(result: Plan, kind: str) -> tuple[str, str, str]:
    assert result.status is not None
    found = next(item for item in result.status["conditions"] if item["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_an_unreadable_spec_makes_and_stops_nothing() -> None:
    running = plan(Observed(made()), Live(), START, SETTINGS)
    replica = running.create[0][1]
    replica["metadata"] |= {"uid": "r", "creationTimestamp": to_timestamp(START)}
    entry = ServiceEntry(namespace="default", name="llama", uid="s", served_names=("m",))
    broken = made(replicas="many")
    broken["status"] = {"revision": "abc", "engine": "torch"}
    result = plan(Observed(broken, (replica,)), Live(entry=entry), START, SETTINGS)
    assert not result.delete
    assert not result.drains
    assert not [obj for kind, obj in result.create if kind.kind == "EngineReplica"]
    status, reason, message = condition(result, "Accepted")
    assert (status, reason) == ("False", "InvalidSpec")
    assert "spec.replicas" in message
    assert result.status is not None
    assert (result.status["revision"], result.status["engine"]) == ("abc", "torch")
    assert result.entry is not None
    assert result.entry.served_names == ("m",)


def test_a_spec_that_never_was_readable_is_known_by_its_name() -> None:
    result = plan(Observed(made(replicas=[])), Live(), START, SETTINGS)
    assert result.entry is not None
    assert result.entry.served_names == ("llama",)


def test_equal_facts_give_equal_plans() -> None:
    observed = Observed(made(replicas=3))
    assert plan(observed, Live(), START, SETTINGS) == plan(observed, Live(), START, SETTINGS)


def test_names_in_use_are_passed_over() -> None:
    first = plan(Observed(made()), Live(), START, SETTINGS).create[0][1]
    stranger = {"metadata": {"name": first["metadata"]["name"], "namespace": "default", "uid": "x"}}
    second = plan(Observed(made(), pods=(stranger,)), Live(), START, SETTINGS).create[0][1]
    assert second["metadata"]["name"] != first["metadata"]["name"]
