"""Counts for Prometheus: plain numbers that the data plane changes, turned into families when somebody scrapes.

Labels are bounded: services come from the catalogue, codes, reasons and causes from this package.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from roundhouse_gateway.journal import Record

TTFT_EDGES: Final = (
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_PREFIX = "roundhouse_gateway_"


class Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(TTFT_EDGES) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(TTFT_EDGES, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        edges = [*(str(edge) for edge in TTFT_EDGES), "+Inf"]
        sums = [sum(self.counts[: i + 1]) for i in range(len(edges))]
        return [(edge, float(count)) for edge, count in zip(edges, sums, strict=True)]


class Metrics:
    """What happened since the start. One writer, the data plane's loop. ``errors`` are counted where they are made."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.spot_checks: defaultdict[str, int] = defaultdict(int)
        self.wire_errors: defaultdict[str, int] = defaultdict(int)
        self.errors: defaultdict[str, int] = defaultdict(int)
        self.picks: defaultdict[str, int] = defaultdict(int)
        self.retries: defaultdict[str, int] = defaultdict(int)
        self.broken_streams: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.ttft: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.predicted_cached: defaultdict[str, int] = defaultdict(int)
        self.reported_cached: defaultdict[str, int] = defaultdict(int)
        self.prompt_tokens: defaultdict[str, int] = defaultdict(int)
        self.completion_tokens: defaultdict[str, int] = defaultdict(int)
        self._done: list[Record] = []

    def done(self, record: Record) -> None:
        """A request is over. It is counted by the next `settle`, many at a time."""
        self._done.append(record)

    def settle(self) -> None:
        done, self._done = self._done, []
        for record in done:
            service = record.service
            self.requests[service, "499" if record.finish == "client_gone" else str(record.status)] += 1
            self.predicted_cached[service] += record.cached_predicted
            if record.ttft_s is not None:
                self.ttft[service].observe(record.ttft_s)
            for attempt in record.attempts:
                self.picks[attempt.reason] += 1
            for failed in record.attempts[:-1]:
                self.retries[failed.outcome] += 1
            if record.finish == "broken":
                self.broken_streams[service, record.attempts[-1].outcome] += 1
            usage = record.usage
            if usage is not None:
                self.prompt_tokens[service] += usage.prompt_tokens
                self.completion_tokens[service] += usage.completion_tokens
                self.reported_cached[service] += usage.cached_tokens or 0

    def families(self) -> Iterator[Metric]:
        service = ("service",)
        yield _counter("requests", "Requests answered, by service and status.", ("service", "code"), self.requests)
        yield _counter("errors", "Errors of the gateway's own, by code.", ("code",), self.errors)
        yield _counter("spot_checks", "Renderings checked by agents, by result.", ("result",), self.spot_checks)
        yield _counter("wire_errors", "Unreadable messages, by what they were.", ("what",), self.wire_errors)
        yield _counter("picks", "Replicas picked, by reason.", ("reason",), self.picks)
        yield _counter("retries", "Requests sent again, by what went wrong.", ("cause",), self.retries)
        yield _counter("streams_broken", "Streams ended by an error.", ("service", "cause"), self.broken_streams)
        yield _counter("prompt_tokens", "Prompt tokens that engines reported.", service, self.prompt_tokens)
        yield _counter("completion_tokens", "Tokens that engines made.", service, self.completion_tokens)
        yield _counter("cached_tokens_predicted", "Cached tokens predicted.", service, self.predicted_cached)
        yield _counter("cached_tokens_reported", "Cached tokens reported.", service, self.reported_cached)
        ttft = HistogramMetricFamily(
            _PREFIX + "time_to_first_event_seconds", "From a streaming request to its first event.", labels=["service"]
        )
        for name, histogram in list(self.ttft.items()):
            ttft.add_metric([name], histogram.buckets(), histogram.total)
        yield ttft


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
        yield from self._metrics.families()
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


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, int]) -> Metric:
    """``values`` by label value, or by tuple of them."""
    family = CounterMetricFamily(_PREFIX + name, text, labels=list(labels))
    for key, value in list(values.items()):
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    return family
