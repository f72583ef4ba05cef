"""Log-probabilities in the two shapes of OpenAI."""

from collections.abc import Sequence
from typing import Any, NamedTuple

LEAST = -9999.0
"""JSON has no infinity; vLLM's number."""


class Alternative(NamedTuple):
    text: str
    raw: bytes
    logprob: float

    @property
    def shown(self) -> dict[str, Any]:
        return {"token": self.text, "logprob": max(self.logprob, LEAST), "bytes": list(self.raw)}


class Told(NamedTuple):
    """One token of an answer, ``offset`` characters from its beginning, and the likeliest ones at its place."""

    chosen: Alternative
    top: Sequence[Alternative]
    offset: int


def chat_logprobs(told: Sequence[Told]) -> dict[str, Any] | None:
    if not told:
        return None
    return {"content": [{**one.chosen.shown, "top_logprobs": [other.shown for other in one.top]} for one in told]}


def completion_logprobs(told: Sequence[Told]) -> dict[str, Any] | None:
    """The chosen token is always among the top ones."""
    if not told:
        return None
    tops = [{other.text: max(other.logprob, LEAST) for other in (*one.top, one.chosen)} for one in told]
    return {
        "text_offset": [one.offset for one in told],
        "token_logprobs": [max(one.chosen.logprob, LEAST) for one in told],
        "tokens": [one.chosen.text for one in told],
        "top_logprobs": tops,
    }
