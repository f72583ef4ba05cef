"""Chat template → prompt text, as the engine would render it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from roundhouse_kv.records import Profile


@dataclass(frozen=True, slots=True)
class Rendered:
    """``text`` is the predictable part; ``complete`` False: a part that is no text (an image) ended it early."""

    text: str
    complete: bool = True


class Renderer:
    """One profile's template, compiled once. ``clock`` gives Unix seconds for ``strftime_now`` (UTC)."""

    def __init__(self, profile: Profile, *, clock: Callable[[], float] = time.time) -> None:
        self.profile = profile

    def chat(self, body: Mapping[str, Any]) -> Rendered:
        """The prompt of a chat completion. Raises `RenderError` when there is no prediction."""
        raise NotImplementedError

    def completion(self, prompt: str) -> Rendered:
        """The prompt of ``/v1/completions``: the post-processor's prefix (BOS) and the text."""
        raise NotImplementedError

    def encode(self, rendered: Rendered) -> bytes:
        """The bytes that the prompt's tokens spell."""
        raise NotImplementedError

    def keys(self, body: Mapping[str, Any], path: str, *, adapter: str = "", cache_salt: str = "") -> list[int]:
        """Prefix keys of a request to ``path`` (``/v1/chat/completions`` or ``/v1/completions``)."""
        raise NotImplementedError
