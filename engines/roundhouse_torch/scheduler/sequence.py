"""One answer in the making."""

from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from roundhouse_torch.kvcache import chain
from roundhouse_torch.messages.command import Sampling


class Finish(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Constraint(Protocol):
    """What an answer must match, and follows its tokens: the part of llguidance's ``LLMatcher`` that is used here."""

    def is_stopped(self) -> bool:
        """Nothing can follow."""
        ...

    def consume_token(self, token: int) -> bool:
        """False: this token does not match."""
        ...

    def validate_tokens(self, tokens: list[int]) -> int:
        """How many of ``tokens`` may follow."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens of prompt and answer, and where their KV is.

    ``computed`` tokens have KV in ``blocks``; the rest is *pending*: one token while an answer grows, more during
    prefill and after a preemption. ``named`` counts the leading blocks that carry a name of ``names``. ``cached``
    is how many prompt tokens were found in the cache when it was first started, None before. ``history`` and
    ``guesses`` belong to sampler and speculation: what they remember of this answer.
    """

    id: int
    tokens: list[int]
    sampling: Sampling
    _: KW_ONLY
    max_length: int
    root: bytes
    salt: str = ""
    adapter: str = ""
    pooled: bool = False
    priority: int = 0
    constraint: Constraint | None = None
    history: Any = None
    guesses: Any = None
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    named: int = 0
    cached: int | None = None
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    def name_blocks(self, count: int, block_size: int) -> None:
        """Have names for the first ``count`` blocks."""
        have = len(self.names)
        if have < count:
            parent = self.names[-1] if have else self.root
            self.names += chain.extend(parent, self.tokens[have * block_size : count * block_size], block_size)

    def finish(self) -> tuple[Finish, int | None] | None:
        """After a new token: why this was the last one, and the stop token that said so (None for the model's own
        end).
        """
        token = self.tokens[-1]
        matches = self.constraint is None or self.constraint.consume_token(token)
        if self.generated >= self.sampling.min_tokens:
            if token in self.sampling.eos_ids:
                return Finish.STOP, None
            if token in self.sampling.stop_ids:
                return Finish.STOP, token
        if not matches or (self.constraint is not None and self.constraint.is_stopped()):
            return Finish.STOP, None
        if len(self.tokens) >= self.max_length:
            return Finish.LENGTH, None
        return None
