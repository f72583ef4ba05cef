"""One answer in the making."""

from enum import StrEnum

from roundhouse_torch.kvcache import chain
from roundhouse_torch.messages.command import Sampling


class Finish(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Sequence:
    """Tokens of prompt and answer, and where their KV is.

    ``computed`` tokens have KV in ``blocks``; the rest is *pending*: one token while an answer grows, more during
    prefill and after a preemption. ``named`` counts the leading blocks that carry a name of ``names``. ``cached``
    is how many prompt tokens were found in the cache when it was first started, None before.
    """

    __slots__ = (
        "blocks",
        "cached",
        "computed",
        "id",
        "max_length",
        "named",
        "names",
        "prompt_length",
        "root",
        "salt",
        "sampling",
        "tokens",
    )

    def __init__(
        self, id: int, tokens: list[int], sampling: Sampling, *, max_length: int, root: bytes, salt: str = ""
    ) -> None:
        self.id = id
        self.tokens = tokens
        self.prompt_length = len(tokens)
        self.sampling = sampling
        self.max_length = max_length
        self.root = root
        self.salt = salt
        self.computed = 0
        self.blocks: list[int] = []
        self.names: list[bytes] = []
        self.named = 0
        self.cached: int | None = None

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
        if self.generated >= self.sampling.min_tokens:
            if token in self.sampling.eos_ids:
                return Finish.STOP, None
            if token in self.sampling.stop_ids:
                return Finish.STOP, token
        if len(self.tokens) >= self.max_length:
            return Finish.LENGTH, None
        return None
