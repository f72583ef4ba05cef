"""How an agent watches its engine: HTTP and ZMQ. Used by the agent."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from roundhouse_engines.errors import UnknownEngine
from roundhouse_engines.launch import ENGINE_KINDS


@dataclass(frozen=True, slots=True)
class LoadReport:
    """``kv_used`` is the share of KV blocks in use (0–1); ``tokens_total`` counts generated tokens."""

    waiting: int
    running: int
    kv_used: float
    kv_tokens: int
    block_size: int
    tokens_total: int


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Full blocks that now hold KV. ``hashes`` are the engine's own, as unsigned 64-bit; tokens are block_size each.

    ``salt`` and ``adapter`` enter the root; ``opaque``: the blocks hold what text cannot spell (images).
    ``reannounced``: tells of blocks that may be known already, and adds no copy of them.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: tuple[int, ...]
    block_size: int
    salt: str = ""
    adapter: str = ""
    opaque: bool = False
    reannounced: bool = False


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    pass


CacheEvent = BlocksStored | BlocksRemoved | BlocksCleared


@dataclass(frozen=True, slots=True)
class CacheBatch:
    """Events of one engine step, in order. ``gap``: batches before it are lost for good; presence must be forgotten.

    ``skipped``: events that were left out, because they are about other memory or of an unknown shape.
    """

    seq: int
    events: tuple[CacheEvent, ...]
    gap: bool = False
    skipped: int = 0


class Probe(Protocol):
    """One engine, watched. Every method raises `ProbeError` when the engine does not answer within its deadline."""

    async def healthy(self) -> bool:
        """False when nobody listens or the engine says that it is dead; a silent engine is a `ProbeError`."""
        ...

    async def load(self) -> LoadReport: ...

    async def stack(self) -> Mapping[str, str]:
        """What really runs: engine, version, weights format, KV dtype, block size … ; undisclosed = ``unknown``."""
        ...

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Token ids as the engine makes them, None when the engine has no such endpoint."""
        ...

    async def tokenize_chat(self, body: Mapping[str, object]) -> tuple[int, ...] | None: ...

    async def complete(self, body: Mapping[str, object]) -> Mapping[str, object]:
        """One non-streaming chat completion, for self-tests."""
        ...

    def events(self) -> AsyncIterator[CacheBatch]:
        """KV events from the engine's start on, gaps filled by replay where it can be; iterated once.

        First comes what happened before, or one batch with all that the engine holds now; an empty batch ends this
        part. What can neither be replayed nor told as a whole is a `CacheBatch.gap`.
        """
        ...

    async def model_file(self, name: str) -> bytes | None:
        """A file of the model's folder, from an engine that brings its own model; None when it has no such file."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Where the engine listens. ``run_dir`` holds the ``ipc`` sockets."""

    address: str
    port: int
    model_name: str
    kv_events: str
    kv_replay: str


class ProbeFactory(Protocol):
    def __call__(self, target: ProbeTarget) -> Probe: ...


def load_probe(kind: str) -> ProbeFactory:
    """Raises `UnknownEngine`."""
    if kind not in ENGINE_KINDS:
        raise UnknownEngine(f"engine {kind!r} is not one of {', '.join(ENGINE_KINDS)}")
    factory: ProbeFactory = import_module(f"roundhouse_engines.{kind}.probe").PROBE
    return factory
