"""Counts of the data plane: plain numbers, changed as requests end and read when somebody scrapes (`metrics`)."""

from bisect import bisect_left
from collections import defaultdict
from typing import Final

from roundhouse_gateway.journal import Record

TTFT_EDGES: Final[tuple[float, ...]] = (
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip


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
