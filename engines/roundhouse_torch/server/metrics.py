"""Prometheus metrics under vLLM's names and labels, so that dashboards and scrapers need no second set."""

from collections.abc import Sequence
from dataclasses import dataclass

import prometheus_client as prometheus
from prometheus_client import Counter, Gauge, Histogram

from roundhouse_torch.messages.report import Load, Loaded, Output
from roundhouse_torch.scheduler.sequence import Finish

_TTFT = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_ITL = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
_LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_N = (1, 2, 5, 10, 20)
_LABELS = ("model_name", "engine")


def token_buckets(longest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 … up to ``longest``."""
    return [step for power in range(12) for step in (10**power, 2 * 10**power, 5 * 10**power) if step <= longest]


@dataclass(slots=True)
class Timeline:
    """One answer's times (monotonic seconds) and counts.

    ``allowed``: its max_tokens; ``params_n``: n of its request; ``began``: when it left the queue.
    """

    arrived: float
    prompt_tokens: int
    allowed: int
    params_n: int
    began: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    cached: int = 0
    generated: int = 0


class Metrics:
    """One registry per server. Everything is labelled with the first served name and engine 0."""

    content_type = "text/plain; version=1.0.0; charset=utf-8"

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        prometheus.PlatformCollector(registry=self.registry)
        self._values = (model_name, "0")
        self._blocks = 1
        self._gauges()
        self._counters()
        self._histograms(token_buckets(max_model_len))

    def _gauges(self) -> None:
        self._running = self._gauge("num_requests_running", "Number of requests in model execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self._usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        waiting = Gauge(
            "vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", (*_LABELS, "reason"),
            registry=self.registry,
        )  # fmt: skip
        self._capacity, self._deferred = (waiting.labels(*self._values, why) for why in ("capacity", "deferred"))

    def _counters(self) -> None:
        self._preemptions = self._counter("num_preemptions", "Preemptions of running requests.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._prompt = self._counter("prompt_tokens", "Prefill tokens processed.")
        self._cached = self._counter("prompt_tokens_cached", "Prompt tokens taken from the cache.")
        self._generation = self._counter("generation_tokens", "Generated tokens.")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Tokens guessed and verified.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Guesses that were right.")
        self._computed, self._found = self._counters_by(
            "source", ("local_compute", "local_cache_hit"), "prompt_tokens_by_source", "Prompt tokens by source."
        )
        (self._device,) = self._counters_by(
            "source", ("device",), "prompt_tokens_cached_by_source", "Prefix-cache hit tokens by tier."
        )
        ended = self._counters_by("finished_reason", list(Finish), "request_success", "Requests that ended, by reason.")
        self._success = dict(zip(Finish, ended, strict=True))
        rejected = Counter(
            "vllm:admission_rejections", "Requests refused for load.", ("model_name", "reason"), registry=self.registry
        )
        self._rejected = rejected.labels(self._values[0], "max_num_queued_reqs")

    def _histograms(self, tokens: list[int]) -> None:
        self._ttft = self._histogram("time_to_first_token_seconds", "Time to first token in seconds.", _TTFT)
        self._itl = self._histogram("inter_token_latency_seconds", "Time between tokens in seconds.", _ITL)
        self._tpot = self._histogram("request_time_per_output_token_seconds", "Mean time between its tokens.", _ITL)
        self._e2e = self._histogram("e2e_request_latency_seconds", "End to end latency in seconds.", _LATENCY)
        self._queue = self._histogram("request_queue_time_seconds", "Time waiting in seconds.", _LATENCY)
        self._inference = self._histogram("request_inference_time_seconds", "Time running in seconds.", _LATENCY)
        self._prefill = self._histogram("request_prefill_time_seconds", "Time in prefill in seconds.", _LATENCY)
        self._decode = self._histogram("request_decode_time_seconds", "Time in decode in seconds.", _LATENCY)
        self._step_tokens = self._histogram("iteration_tokens_total", "Tokens per engine step.", _STEP_TOKENS)
        self._request_prompt = self._histogram("request_prompt_tokens", "Prefill tokens of a request.", tokens)
        self._request_generation = self._histogram("request_generation_tokens", "Tokens of an answer.", tokens)
        self._request_computed = self._histogram("request_prefill_kv_computed_tokens", "Tokens not cached.", tokens)
        self._params_max = self._histogram("request_params_max_tokens", "max_tokens of a request.", tokens)
        self._params_n = self._histogram("request_params_n", "n of a request.", _N)

    def configured(self, loaded: Loaded, *, prefix_caching: bool) -> None:
        """Figures that are known once the engine has measured its memory."""
        self._blocks = loaded.blocks
        labels = {
            "block_size": str(loaded.block_size),
            "num_gpu_blocks": str(loaded.blocks),
            "cache_dtype": loaded.dtype,
            "enable_prefix_caching": str(prefix_caching),
            "prefix_caching_hash_algo": "blake2b",
            "kv_cache_size_tokens": str(loaded.blocks * loaded.block_size),
            "kv_cache_max_concurrency": str(loaded.blocks * loaded.block_size / loaded.max_model_len),
            "engine": "0",
        }
        prometheus.Info("vllm:cache_config", "The cache's configuration.", registry=self.registry).info(labels)

    def page(self) -> bytes:
        return prometheus.generate_latest(self.registry)

    def rejected(self) -> None:
        self._rejected.inc()

    def step(self, load: Load) -> None:
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._capacity.set(load.waiting - load.deferred)
        self._deferred.set(load.deferred)
        self._usage.set(load.used_blocks / self._blocks)
        if not load.step_tokens:
            return
        self._step_tokens.observe(load.step_tokens)
        self._preemptions.inc(load.preemptions)
        self._drafted.inc(load.drafted)
        self._accepted.inc(load.accepted)
        self._queries.inc(load.prefix_queries)
        self._prompt.inc(load.prompt_computed + load.prefix_hits)
        self._computed.inc(load.prompt_computed)
        for counter in (self._hits, self._found, self._cached, self._device):
            counter.inc(load.prefix_hits)

    def tokens(self, timeline: Timeline, output: Output, now: float) -> None:
        count = len(output.tokens)
        self._generation.inc(count)
        if timeline.last_token is None:
            timeline.first_token = now
            timeline.cached = output.cached
            self._ttft.observe(now - timeline.arrived)
        else:
            self._itl.observe(now - timeline.last_token)
        timeline.last_token = now
        timeline.generated += count

    def ended(self, timeline: Timeline, finish: Finish, now: float) -> None:
        self._success[finish].inc()
        self._e2e.observe(now - timeline.arrived)
        self._request_prompt.observe(timeline.prompt_tokens)
        self._request_generation.observe(timeline.generated)
        self._params_max.observe(timeline.allowed)
        self._params_n.observe(timeline.params_n)
        if timeline.began is not None:
            self._queue.observe(timeline.began - timeline.arrived)
        if timeline.began is None or timeline.first_token is None or timeline.last_token is None:
            return
        self._request_computed.observe(timeline.prompt_tokens - timeline.cached)
        self._prefill.observe(timeline.first_token - timeline.began)
        self._decode.observe(timeline.last_token - timeline.first_token)
        self._inference.observe(timeline.last_token - timeline.began)
        if timeline.generated > 1:
            self._tpot.observe((timeline.last_token - timeline.first_token) / (timeline.generated - 1))

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(*self._values)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(*self._values)

    def _counters_by(self, label: str, values: Sequence[str], name: str, text: str) -> list[Counter]:
        counter = Counter(f"vllm:{name}", text, (*_LABELS, label), registry=self.registry)
        return [counter.labels(*self._values, value) for value in values]

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"vllm:{name}", text, _LABELS, registry=self.registry, buckets=buckets).labels(*self._values)
