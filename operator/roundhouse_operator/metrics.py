"""What the operator tells Prometheus. Read when asked for, so the loop keeps plain counters."""

from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from roundhouse_operator.core import OperatorCore


class OperatorCollector(Collector):
    """``core`` gives the running operator, None while another process leads."""

    def __init__(self, core: Callable[[], OperatorCore | None]) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        core = self._core()
        yield _gauge("roundhouse_operator_leading", "1 while this process leads", 1.0 if core else 0.0)
        if core is None:
            return
        backlog = core.queue.backlog
        stats = backlog.stats
        yield _gauge("roundhouse_operator_queue_depth", "Services waiting to be looked at", backlog.depth)
        yield _counter("roundhouse_operator_queue_added", "Times that a service was queued", stats.added)
        yield _counter("roundhouse_operator_queue_coalesced", "Of these, those already queued", stats.coalesced)
        yield _counter("roundhouse_operator_reconciles", "Looks at a service", stats.taken)
        yield _counter("roundhouse_operator_reconcile_failures", "Of these, those that failed", stats.failed)
        yield _counter("roundhouse_operator_queue_wait_seconds", "Time that services waited", stats.waited_s)
        yield _gauge("roundhouse_operator_redis_healthy", "1 while Redis answers", float(core.redis_healthy()))
        services = len(core.publisher.entries())
        yield _gauge("roundhouse_operator_services", "Services in the catalogue", services)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)
