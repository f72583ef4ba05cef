"""Server → engine."""

import msgspec


class Sampling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How to choose tokens. ``temperature`` 0 takes the likeliest; ``top_k`` 0 and ``top_p`` 1 restrict nothing.

    ``seed`` and a token's absolute position alone determine its random number: an answer does not depend on what
    else is in the batch, survives preemption, and a continued prompt continues the same answer. ``eos_ids`` is
    empty under ignore_eos.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_tokens: int = 0
    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()


class Add(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Start answering. ``max_length`` counts prompt and answer. ``id`` is the server's, never reused."""

    id: int
    tokens: list[int]
    max_length: int
    sampling: Sampling
    salt: str = ""
    adapter: str = ""


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Forget these; ids that ended already are ignored."""

    ids: list[int]


class ResetCache(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Forget all cached blocks; answered by `CacheReset`."""

    ticket: int


Command = Add | Abort | ResetCache
