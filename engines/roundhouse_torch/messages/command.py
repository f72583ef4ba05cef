"""Server → engine."""

import msgspec


class Sampling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How to choose tokens. ``temperature`` 0 takes the likeliest; all other defaults change nothing.

    ``seed`` and a token's absolute position alone determine its random number: an answer does not depend on what
    else is in the batch, survives preemption, and a continued prompt continues the same answer. ``eos_ids`` is
    empty under ignore_eos. ``logprobs``: how many of the likeliest tokens to tell besides the chosen; None tells
    nothing.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_tokens: int = 0
    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: dict[int, float] = {}
    logprobs: int | None = None

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end the answer and are no part of its text."""
        return self.eos_ids | self.stop_ids

    @property
    def penalised(self) -> bool:
        return self.presence != 0 or self.frequency != 0 or self.repetition != 1


class Add(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Start answering. ``max_length`` counts prompt and answer. ``id`` is the server's, never reused.

    The lowest ``priority`` is started first. ``grammar``: what the answer must match, in llguidance's words.
    ``pooled``: give the prompt's embedding instead.
    """

    id: int
    tokens: list[int]
    max_length: int
    sampling: Sampling
    salt: str = ""
    adapter: str = ""
    grammar: str = ""
    pooled: bool = False
    priority: int = 0


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Forget this one; ids that ended already are ignored."""

    id: int


class ResetCache(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Forget all cached blocks; answered by `Done`, as are the next two."""

    ticket: int


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=True):
    ticket: int
    name: str
    folder: str


class UnloadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=True):
    ticket: int
    name: str


Order = ResetCache | LoadAdapter | UnloadAdapter
Command = Add | Abort | Order
