"""What the agent tells Prometheus."""

from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest
from roundhouse_agent.metrics import AgentCollector, agent_registry


def _page(session: Any) -> str:
    keys = SimpleNamespace(count=3, seq=9)
    replica: Any = SimpleNamespace(state="ready", hung=False, keys=keys)
    publisher: Any = SimpleNamespace(snapshots=1, failures=0)
    watch: Any = SimpleNamespace(session=session)
    return generate_latest(agent_registry(AgentCollector(replica, watch, publisher, publisher))).decode()


def test_events_that_were_left_out_are_counted() -> None:
    session = SimpleNamespace(feed=SimpleNamespace(blocks=None, skipped=7))
    assert "roundhouse_agent_kv_events_skipped_total 7.0" in _page(session)


def test_without_an_engine_there_are_none() -> None:
    assert "roundhouse_agent_kv_events_skipped_total 0.0" in _page(None)
