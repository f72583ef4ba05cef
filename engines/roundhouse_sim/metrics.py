"""The metrics page, under vLLM's names. Times are wall-clock seconds.

The hot path only adds to plain numbers; `MetricsPage` turns them into families when someone asks.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from roundhouse_sim.engine import Engine
from roundhouse_sim.job import Job
from roundhouse_sim.settings import Settings

FINISH_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
REJECTIONS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")
TTFT_EDGES: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TOKEN_EDGES: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_EDGES: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
LENGTH_EDGES: Final = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5) if m * 10**e <= 131_072)


@dataclass(slots=True)
class Histogram:
    edges: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.edges) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.edges, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        running, pairs = 0, []
        for edge, count in zip((*map(str, self.edges), "+Inf"), self.counts, strict=True):
            running += count
            pairs.append((edge, float(running)))
        return pairs


class Metrics:
    """What happened to requests since the start."""

    def __init__(self) -> None:
        self.finished: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.histograms = {
            "time_to_first_token_seconds": Histogram(TTFT_EDGES),
            "inter_token_latency_seconds": Histogram(TOKEN_EDGES),
            "request_time_per_output_token_seconds": Histogram(TOKEN_EDGES),
            "e2e_request_latency_seconds": Histogram(REQUEST_EDGES),
            "request_queue_time_seconds": Histogram(REQUEST_EDGES),
            "request_prefill_time_seconds": Histogram(REQUEST_EDGES),
            "request_decode_time_seconds": Histogram(REQUEST_EDGES),
            "request_inference_time_seconds": Histogram(REQUEST_EDGES),
            "request_prompt_tokens": Histogram(LENGTH_EDGES),
            "request_generation_tokens": Histogram(LENGTH_EDGES),
        }

    def record(self, job: Job, now: float) -> None:
        """A job is over. Only complete ones enter the histograms; tokens between two events count as evenly spaced."""
        self.finished[job.finish or "error"] += 1
        if job.finish == "abort":
            return
        observe = {name: histogram.observe for name, histogram in self.histograms.items()}
        observe["time_to_first_token_seconds"](job.first - job.arrived)
        observe["request_queue_time_seconds"](job.started - job.arrived)
        observe["request_prefill_time_seconds"](job.first - job.started)
        observe["request_decode_time_seconds"](now - job.first)
        observe["request_inference_time_seconds"](now - job.started)
        observe["e2e_request_latency_seconds"](now - job.arrived)
        observe["request_prompt_tokens"](job.prompt_tokens)
        observe["request_generation_tokens"](job.generated)
        if job.generated > 1:
            pace = (now - job.first) / (job.generated - 1)
            observe["inter_token_latency_seconds"](pace, job.generated - 1)
            observe["request_time_per_output_token_seconds"](pace)


class MetricsPage(Collector):
    """Renders ``/metrics``."""

    def __init__(self, metrics: Metrics, engine: Engine, settings: Settings) -> None:
        self._metrics = metrics
        self._engine = engine
        self._settings = settings
        self._labels = {"model_name": settings.served_names[0], "engine": "0"}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        for name, histogram in self._metrics.histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", name.replace("_", " "), labels=list(self._labels))
            family.add_metric(list(self._labels.values()), histogram.buckets(), histogram.total)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        scheduler = self._engine.scheduler
        waiting = len(scheduler.waiting)
        yield self._gauge("num_requests_running", scheduler.running)
        yield self._gauge("num_requests_waiting", waiting)
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "waiting", labels=[*self._labels, "reason"]
        )
        for reason, value in (("capacity", waiting), ("deferred", 0)):
            by_reason.add_metric([*self._labels.values(), reason], value)
        yield by_reason
        yield self._gauge("kv_cache_usage_perc", self._engine.kv_used)
        info = {
            "block_size": str(self._settings.block_size),
            "num_gpu_blocks": str(self._settings.blocks),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "kv_cache_size_tokens": str(self._settings.blocks * self._settings.block_size),
            "engine": "0",
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "information of the KV cache", labels=list(info))
        family.add_metric(list(info.values()), 1)
        yield family
        lag = GaugeMetricFamily("sim:lag_seconds", "virtual seconds that the simulation is behind the clock")
        lag.add_metric([], self._engine.lag)
        yield lag

    def _counters(self) -> Iterator[Metric]:
        engine = self._engine
        yield self._counter("prefix_cache_queries", engine.prompt_tokens)
        yield self._counter("prefix_cache_hits", engine.cached_tokens)
        yield self._counter("prompt_tokens", engine.prompt_tokens)
        yield self._counter("prompt_tokens_cached", engine.cached_tokens)
        yield self._counter("generation_tokens", engine.generated_tokens)
        yield self._counter("num_preemptions", 0)
        finished = CounterMetricFamily("vllm:request_success", "finished", labels=[*self._labels, "finished_reason"])
        for reason in FINISH_REASONS:
            finished.add_metric([*self._labels.values(), reason], self._metrics.finished[reason])
        yield finished
        rejected = CounterMetricFamily("vllm:admission_rejections", "refused", labels=["model_name", "reason"])
        for reason in REJECTIONS:
            rejected.add_metric([self._labels["model_name"], reason], self._metrics.rejected[reason])
        yield rejected

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", name.replace("_", " "), labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", name.replace("_", " "), labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
