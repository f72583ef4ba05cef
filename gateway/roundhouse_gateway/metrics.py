"""Counts for Prometheus: plain numbers that the data plane changes, turned into families when somebody scrapes.

Labels are bounded: services come from the catalogue, codes, reasons and causes from this package.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from roundhouse_gateway.counts import Metrics

_PREFIX = "roundhouse_gateway_"


@dataclass(frozen=True, slots=True)
class Gauge:
    """Something that is read when somebody scrapes; ``samples`` by the values of ``labels``."""

    name: str
    text: str
    labels: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], float]]


class _Page(Collector):
    def __init__(self, metrics: Metrics, gauges: Iterable[Gauge]) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        yield from families(self._metrics)
        for gauge in self._gauges:
            family = GaugeMetricFamily(_PREFIX + gauge.name, gauge.text, labels=list(gauge.labels))
            for labels, value in gauge.samples:
                family.add_metric(list(labels), value)
            yield family


def render_page(metrics: Metrics, gauges: Iterable[Gauge]) -> bytes:
    """Prometheus text, with CPU, memory and file descriptors of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(metrics, gauges))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def families(counts: Metrics) -> Iterator[Metric]:
    service = ("service",)
    yield _counter("requests", "Requests answered, by service and status.", ("service", "code"), counts.requests)
    yield _counter("errors", "Errors of the gateway's own, by code.", ("code",), counts.errors)
    yield _counter("spot_checks", "Renderings checked by agents, by result.", ("result",), counts.spot_checks)
    yield _counter("wire_errors", "Unreadable messages, by what they were.", ("what",), counts.wire_errors)
    yield _counter("picks", "Replicas picked, by reason.", ("reason",), counts.picks)
    yield _counter("retries", "Requests sent again, by what went wrong.", ("cause",), counts.retries)
    yield _counter("streams_broken", "Streams ended by an error.", ("service", "cause"), counts.broken_streams)
    yield _counter("prompt_tokens", "Prompt tokens that engines reported.", service, counts.prompt_tokens)
    yield _counter("completion_tokens", "Tokens that engines made.", service, counts.completion_tokens)
    yield _counter("cached_tokens_predicted", "Cached tokens predicted.", service, counts.predicted_cached)
    yield _counter("cached_tokens_reported", "Cached tokens reported.", service, counts.reported_cached)
    ttft = HistogramMetricFamily(
        _PREFIX + "time_to_first_event_seconds", "From a streaming request to its first event.", labels=["service"]
    )
    for name, histogram in list(counts.ttft.items()):
        ttft.add_metric([name], histogram.buckets(), histogram.total)
    yield ttft


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, int]) -> Metric:
    """``values`` by label value, or by tuple of them."""
    family = CounterMetricFamily(_PREFIX + name, text, labels=list(labels))
    for key, value in list(values.items()):
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    return family
