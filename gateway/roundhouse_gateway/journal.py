"""The last ten thousand requests: why each went where it went, what was predicted, what came out. No prompts."""

from typing import Any, Final

from roundhouse_engines.dialect import Usage

from roundhouse_gateway.pick import Choice, Reason, Standing
from roundhouse_gateway.replica import Replica
from roundhouse_gateway.tokens import CHUNK_BYTES

KEPT: Final = 10_000
CANDIDATES_KEPT: Final = 8


class Attempt:
    """One replica tried. ``outcome`` is ``open`` until it is known."""

    __slots__ = ("outcome", "pod_uid", "reason", "replica")

    def __init__(self, replica: Replica, reason: Reason) -> None:
        self.replica = replica.name
        self.pod_uid = replica.pod_uid
        self.reason = reason
        self.outcome = "open"


class Record:
    """One request, over or still open. ``number`` is its id, ``started`` Unix seconds, ``status`` 0 while nothing was
    answered; ``ranking`` and ``depths`` (chunks held, by replica) as they were at its first pick."""

    __slots__ = (
        "attempts", "cached_predicted", "depths", "finish", "model", "number", "path", "prompt_bytes", "ranking",
        "service", "started", "status", "streams", "total_s", "ttft_s", "usage",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        service: str,
        model: str,
        path: str,
        started: float,
        streams: bool,
        prompt_bytes: int,
        ranking: list[Choice],
        depths: dict[str, int],
        attempts: list[Attempt],
        cached_predicted: int,
        usage: Usage | None,
        ttft_s: float | None,
        total_s: float | None,
        status: int,
        finish: str,
    ) -> None:
        self.number = number
        self.service = service
        self.model = model
        self.path = path
        self.started = started
        self.streams = streams
        self.prompt_bytes = prompt_bytes
        self.ranking = ranking
        self.depths = depths
        self.attempts = attempts
        self.cached_predicted = cached_predicted
        self.usage = usage
        self.ttft_s = ttft_s
        self.total_s = total_s
        self.status = status
        self.finish = finish

    def as_json(self) -> dict[str, Any]:
        """Contracts §9."""
        usage = self.usage
        return {
            "v": 1,
            "id": f"{self.number:016x}",
            "service": self.service,
            "model": self.model,
            "started": self.started,
            "path": self.path,
            "streams": self.streams,
            "promptBytes": self.prompt_bytes,
            "candidates": [_candidate(c, CHUNK_BYTES * self.depths.get(c.replica.name, 0)) for c in self.ranking],
            "picks": [{"replica": a.replica, "reason": a.reason, "outcome": a.outcome} for a in self.attempts],
            "actual": {
                "promptTokens": usage.prompt_tokens if usage is not None else None,
                "cachedTokens": usage.cached_tokens if usage is not None else None,
                "completionTokens": usage.completion_tokens if usage is not None else None,
                "ttftSeconds": self.ttft_s,
                "totalSeconds": self.total_s,
                "status": self.status,
                "finish": self.finish,
            },
        }


class Journal:
    """A ring: requests are numbered one by one, so a number tells its own place."""

    def __init__(self, kept: int = KEPT) -> None:
        self._ring: list[Record | None] = [None] * kept

    def add(self, record: Record) -> None:
        self._ring[record.number % len(self._ring)] = record

    def find(self, number: int) -> Record | None:
        record = self._ring[number % len(self._ring)]
        return record if record is not None and record.number == number else None


def _candidate(choice: Choice, matched_bytes: int) -> dict[str, Any]:
    return {
        "replica": choice.replica.name,
        "matchedBytes": matched_bytes,
        "predictedCachedTokens": choice.cached_tokens,
        "bookedSeconds": round(choice.booked_s, 6),
        "ownSeconds": round(choice.own_s, 6),
        "contextSeconds": round(choice.context_s, 6),
        "totalSeconds": round(choice.total_s, 6),
        "note": "" if choice.standing is Standing.GOOD else choice.standing.name.lower(),
    }
