"""What an engine says of one answer's tokens."""


class Usage:
    """Token counts an engine reported; ``cached_tokens`` None when it does not say."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens")

    def __init__(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Usage) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"Usage{self._values()}"

    def _values(self) -> tuple[int, int, int | None]:
        return self.prompt_tokens, self.completion_tokens, self.cached_tokens
