"""How an engine kind speaks HTTP: pure functions over bytes. Used by the gateway."""

from enum import Enum, auto
from importlib import import_module
from typing import Protocol

from roundhouse_engines.errors import UnknownEngine
from roundhouse_engines.launch import ENGINE_KINDS
from roundhouse_engines.usage import Usage

__all__ = ["Dialect", "Mark", "Usage", "load_dialect"]


class Mark(Enum):
    """What one SSE event is, as far as the relay cares."""

    DATA = auto()
    USAGE = auto()  # the usage-only event: empty choices, usage set
    ABORT = auto()  # the engine cut the request (finish_reason abort)
    ERROR = auto()  # an error object instead of a chunk
    DONE = auto()


class Dialect(Protocol):
    """The ``dialect`` module of one engine kind.

    ``control_fields``: body fields that steer the engine and that clients must not send.
    ``control_headers``: request headers (lower case) that are dropped.
    """

    @property
    def kind(self) -> str: ...

    @property
    def control_fields(self) -> frozenset[str]: ...

    @property
    def control_headers(self) -> frozenset[bytes]: ...

    def plain(self, block: bytes) -> bool:
        """True when every event of ``block`` is DATA for certain: a few substring tests, nothing is parsed."""
        ...

    def mark(self, event: bytes) -> Mark:
        """Classify one complete SSE event; cheap substring tests first, parsed only on a match."""
        ...

    def usage(self, data: bytes) -> Usage | None:
        """Usage in a JSON body or in the data of one SSE event."""
        ...


def load_dialect(kind: str) -> Dialect:
    """Raises `UnknownEngine`."""
    if kind not in ENGINE_KINDS:
        raise UnknownEngine(f"engine {kind!r} is not one of {', '.join(ENGINE_KINDS)}")
    dialect: Dialect = import_module(f"roundhouse_engines.{kind}.dialect").DIALECT
    return dialect
