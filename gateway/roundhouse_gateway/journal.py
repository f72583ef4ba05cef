"""The last ten thousand requests: why each went where it went, what was predicted, what came out. No prompts."""

from collections import deque
from typing import Any, Final, NamedTuple

from roundhouse_gateway.pick import Choice, Standing

KEPT: Final = 10_000
CANDIDATES_KEPT: Final = 8


class Candidate(NamedTuple):
    """A ranked replica and the bytes of the prompt that it was predicted to hold."""

    choice: Choice
    matched_bytes: int


class Attempt:
    """One replica tried. ``outcome`` is ``open`` until it is known."""

    __slots__ = ("outcome", "reason", "replica")

    def __init__(self, replica: str, reason: str) -> None:
        self.replica = replica
        self.reason = reason
        self.outcome = "open"


class Entry:
    """One request. ``started`` is Unix seconds; ``status`` 0 while nothing was answered."""

    __slots__ = (
        "attempts", "cached_tokens", "candidates", "completion_tokens", "finish", "id", "model", "path", "prompt_bytes",
        "prompt_tokens", "service", "started", "status", "streams", "total_s", "ttft_s",
    )  # fmt: skip

    def __init__(self, request_id: str, service: str, model: str, path: str, started: float, *, streams: bool) -> None:
        self.id = request_id
        self.service = service
        self.model = model
        self.path = path
        self.started = started
        self.streams = streams
        self.prompt_bytes = 0
        self.candidates: list[Candidate] = []
        self.attempts: list[Attempt] = []
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.ttft_s: float | None = None
        self.total_s: float | None = None
        self.status = 0
        self.finish = "open"

    def as_json(self) -> dict[str, Any]:
        """Contracts §9."""
        return {
            "v": 1,
            "id": self.id,
            "service": self.service,
            "model": self.model,
            "started": self.started,
            "path": self.path,
            "streams": self.streams,
            "promptBytes": self.prompt_bytes,
            "candidates": [_candidate(c) for c in self.candidates],
            "picks": [{"replica": a.replica, "reason": a.reason, "outcome": a.outcome} for a in self.attempts],
            "actual": {
                "promptTokens": self.prompt_tokens,
                "cachedTokens": self.cached_tokens,
                "completionTokens": self.completion_tokens,
                "ttftSeconds": self.ttft_s,
                "totalSeconds": self.total_s,
                "status": self.status,
                "finish": self.finish,
            },
        }


class Journal:
    """Ring of entries by id."""

    def __init__(self, kept: int = KEPT) -> None:
        self._order: deque[str] = deque()
        self._entries: dict[str, Entry] = {}
        self._kept = kept

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        if len(self._order) >= self._kept:
            del self._entries[self._order.popleft()]
        self._order.append(entry.id)
        self._entries[entry.id] = entry

    def find(self, request_id: str) -> Entry | None:
        return self._entries.get(request_id)


def _candidate(candidate: Candidate) -> dict[str, Any]:
    choice = candidate.choice
    return {
        "replica": choice.replica.name,
        "matchedBytes": candidate.matched_bytes,
        "predictedCachedTokens": choice.cached_tokens,
        "bookedSeconds": round(choice.booked_s, 6),
        "ownSeconds": round(choice.own_s, 6),
        "contextSeconds": round(choice.context_s, 6),
        "totalSeconds": round(choice.total_s, 6),
        "note": "" if choice.standing is Standing.GOOD else choice.standing.name.lower(),
    }
