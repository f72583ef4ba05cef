"""Prometheus metrics, read from the agent's state when somebody asks, so that nothing is counted twice."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from roundhouse_agent.blocks import BlockCounts
from roundhouse_agent.engine_watch import EngineWatch
from roundhouse_agent.key_publisher import KeyPublisher
from roundhouse_agent.lease_publisher import LeasePublisher
from roundhouse_agent.replica import Replica

STATES = ("starting", "ready", "draining", "drained", "stopped")


class AgentCollector(Collector):
    def __init__(self, replica: Replica, watch: EngineWatch, keys: KeyPublisher, leases: LeasePublisher) -> None:
        self._replica = replica
        self._watch = watch
        self._keys = keys
        self._leases = leases

    def collect(self) -> Iterator[Metric]:
        replica = self._replica
        state = GaugeMetricFamily("roundhouse_agent_state", "1 for the state of the lease", labels=["state"])
        for name in STATES:
            state.add_metric([name], float(name == replica.state))
        yield state
        yield GaugeMetricFamily("roundhouse_agent_hung", "1 while the engine looks hung", value=float(replica.hung))
        yield GaugeMetricFamily("roundhouse_agent_keys", "Prefix keys held by the engine", value=replica.keys.count)
        yield CounterMetricFamily("roundhouse_agent_kv_log_batches", "Last sequence number", value=replica.keys.seq)
        yield CounterMetricFamily("roundhouse_agent_kv_snapshots", "Snapshots written", value=self._keys.snapshots)
        failures = CounterMetricFamily("roundhouse_agent_redis_failures", "Writes that failed", labels=["what"])
        failures.add_metric(["kv"], self._keys.failures)
        failures.add_metric(["lease"], self._leases.failures)
        yield failures
        session = self._watch.session
        skipped = session.feed.skipped if session is not None else 0
        yield CounterMetricFamily(
            "roundhouse_agent_kv_events_skipped", "KV events of this epoch that were left out", value=skipped
        )
        yield self._blocks()

    def _blocks(self) -> Metric:
        """Counts of this epoch."""
        session = self._watch.session
        blocks = session.feed.blocks if session is not None else None
        counts = blocks.counts if blocks is not None else BlockCounts()
        family = GaugeMetricFamily("roundhouse_agent_blocks", "KV blocks of this epoch, by event", labels=["event"])
        for name in ("stored", "removed", "gaps", "unknown_parents", "unknown_removals", "not_canonical", "opaque"):
            family.add_metric([name], float(getattr(counts, name)))
        return family


def agent_registry(collector: AgentCollector) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry
