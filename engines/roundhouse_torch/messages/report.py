"""Engine → server. Times are ``time.monotonic()`` seconds, which processes of one machine share."""

import msgspec

from roundhouse_torch.kvcache.events import CacheEvent


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The model answers from now on."""

    max_model_len: int
    block_size: int
    blocks: int
    dtype: str
    device: str


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine ends because of this."""

    message: str


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Logarithm of a token's probability before anything restricted it, and the likeliest tokens with theirs."""

    chosen: float
    top: list[tuple[int, float]]


class Output(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """New tokens of one answer. ``cached`` comes with the first ones, ``finish`` with the last.

    ``logprobs``: one for each token, if asked for; ``vector``: float32, the answer to a request for an embedding;
    ``error``: why there will be no answer.
    """

    id: int
    tokens: list[int]
    cached: int = 0
    finish: str | None = None
    stop_token: int | None = None
    logprobs: list[TokenLogprobs] | None = None
    vector: bytes | None = None
    error: str | None = None


class Load(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """State after a step, and the step's counts."""

    running: int = 0
    waiting: int = 0
    used_blocks: int = 0
    step_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_computed: int = 0
    preemptions: int = 0
    drafted: int = 0
    accepted: int = 0
    deferred: int = 0


class StepReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One step, or a sign of life without any.

    ``started``: ids that left the queue for the first time, at time ``began``.
    """

    began: float
    ended: float
    load: Load
    started: list[int] = []
    outputs: list[Output] = []
    events: list[CacheEvent] = []


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An order was obeyed; ``error``: why not."""

    ticket: int
    error: str = ""


Report = Loaded | Failed | StepReport | Done
