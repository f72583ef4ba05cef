"""One request's prediction against what its engine reported; pure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from benchmarks.exactness.service import Run

CHUNK_BYTES = 256
SETTLED_S = 0.5
"""After its end, a request's blocks are known to all gateways."""

SIMULTANEOUS_S = 0.2
"""Of requests begun this closely together, any may have reached the engine first."""


class Sent(NamedTuple):
    """``data``: the rendered prompt; ``began`` and ``ended`` monotonic; ``told``: the gateway's record."""

    kind: str
    path: str
    body: Mapping[str, Any]
    data: bytes
    began: float
    ended: float
    told: Mapping[str, Any]


class Judgement(NamedTuple):
    """``in_flight``: the longest prefix that it shares with anybody was then being computed. ``tolerance`` in bytes.
    ``rendered``: the engine counted as many prompt tokens as our rendering has."""

    kind: str
    in_flight: bool
    matched_bytes: int
    cached_bytes: int
    predicted_tokens: int
    cached_tokens: int
    tolerance: int
    rendered: bool = True

    @property
    def within(self) -> bool:
        return abs(self.matched_bytes - self.cached_bytes) <= self.tolerance

    @property
    def false_hit(self) -> bool:
        """More was predicted than was there."""
        return self.matched_bytes - self.cached_bytes > self.tolerance


def judge(run: "Run", sent: Sent, everybody: Sequence[Sent]) -> Judgement:
    rendered = run.renderer.render(sent.body, sent.path)
    ids = run.tokenizer.encode(rendered.text, add_special_tokens=False).ids
    replica = sent.told["picks"][-1]["replica"]
    choice = next(each for each in sent.told["candidates"] if each["replica"] == replica)
    cached = int(sent.told["actual"]["cachedTokens"] or 0)
    block = len(run.table.bytes(ids[cached : cached + run.block_tokens]))
    return Judgement(
        kind=sent.kind,
        in_flight=in_flight_with(sent, everybody),
        matched_bytes=int(choice["matchedBytes"]),
        cached_bytes=len(run.table.bytes(ids[:cached])),
        predicted_tokens=int(choice["predictedCachedTokens"]),
        cached_tokens=cached,
        tolerance=CHUNK_BYTES + block,
        rendered=sent.told["actual"]["promptTokens"] == len(ids),
    )


def figures_of(judgements: Sequence[Judgement]) -> dict[str, float]:
    settled = [each for each in judgements if not each.in_flight]
    errors = np.array([abs(each.predicted_tokens - each.cached_tokens) for each in settled] or [0])
    count = max(1, len(settled))
    return {
        "requests": len(judgements),
        "in_flight_share": round(1 - len(settled) / max(1, len(judgements)), 4),
        "within_one_block_share": round(sum(each.within for each in settled) / count, 4),
        "false_hit_share": round(sum(each.false_hit for each in settled) / count, 4),
        "rendered_alike_share": round(sum(each.rendered for each in judgements) / max(1, len(judgements)), 4),
        "token_error_mae": round(float(errors.mean()), 1),
        "token_error_p95": round(float(np.quantile(errors, 0.95)), 1),
    }


def in_flight_with(sent: Sent, everybody: Sequence[Sent]) -> bool:
    """Was the longest prefix that it shares with anybody then being computed?"""
    others = [each for each in everybody if each is not sent and _salt(each) == _salt(sent)]
    before = [each for each in others if each.began < sent.began + SIMULTANEOUS_S]
    settled = [each for each in before if each.ended < sent.began - SETTLED_S]
    under_way = [each for each in before if each.ended >= sent.began - SETTLED_S]
    known = max((shared_chunks(sent.data, each.data) for each in settled), default=0)
    return any(shared_chunks(sent.data, each.data) > known for each in under_way)


def shared_chunks(one: bytes, other: bytes) -> int:
    """Whole chunks of a common beginning."""
    most = min(len(one), len(other)) // CHUNK_BYTES
    return next(
        (n for n in range(most) if one[n * CHUNK_BYTES :][:CHUNK_BYTES] != other[n * CHUNK_BYTES :][:CHUNK_BYTES]), most
    )


def _salt(sent: Sent) -> str:
    return str(sent.body.get("cache_salt", ""))
