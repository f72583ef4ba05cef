"""Engine's SSE bytes in, client's SSE bytes out: whole events only, never a broken stream that looks finished. Pure.

Bytes pass as they are up to the last blank line of each read. One cheap scan (`Dialect.plain`) sends a block on without
looking closer; a block with a mark is taken apart: an abort or an error ends the relay, a usage-only event is read and,
when the client did not ask for it, dropped. Nothing comes out before the first ``data:`` event; comments before it
wait.

An event ends at ``\\n\\n`` or ``\\r\\n\\r\\n``. The member ``model`` of each event is renamed from the engine's name
to the client's when they differ; inside JSON strings quotes are escaped, so the pattern cannot match a model's words.
"""

from typing import Final

import orjson
from roundhouse_engines.dialect import Dialect, Mark, Usage

MAX_EVENT_BYTES: Final = 8 << 20
MAX_HELD_BYTES: Final = 64 << 10


class ModelRename:
    """``"model":"<engine's>"`` → ``"model":"<client's>"``, with and without a space after the colon."""

    __slots__ = ("_pairs",)

    def __init__(self, engine_model: str, client_model: str) -> None:
        old, new = orjson.dumps(engine_model), orjson.dumps(client_model)
        self._pairs = [(b'"model":' + space + old, b'"model":' + space + new) for space in (b"", b" ")]

    def apply(self, data: bytes) -> bytes:
        for old, new in self._pairs:
            if old in data:
                data = data.replace(old, new)
        return data


class StreamRelay:
    """One response. After `feed`: ``started`` (the first data event is out), ``end`` (DONE, ABORT or ERROR once seen),
    ``usage`` (once seen), ``error_event`` (the event that ended it), ``verbatim`` (whole events that are ``plain`` may
    go to the client without asking `feed`)."""

    __slots__ = (
        "_dialect", "_drop_usage", "_held", "_rename", "_rest", "end", "error_event", "plain", "started", "usage",
        "verbatim",
    )  # fmt: skip

    def __init__(self, dialect: Dialect, *, drop_usage: bool, rename: ModelRename | None) -> None:
        self._dialect = dialect
        self._drop_usage = drop_usage
        self._rename = rename
        self.plain = dialect.plain
        self.verbatim = False
        self._rest = bytearray()
        self._held = b""
        self.started = False
        self.end: Mark | None = None
        self.usage: Usage | None = None
        self.error_event = b""

    def feed(self, data: bytes) -> bytes:
        """What may go to the client now. Raises `OverflowError` when one event exceeds `MAX_EVENT_BYTES`."""
        ended = self.end is not None  # by a name of its own: `_sift` changes it, which a type checker does not see
        if ended:
            return b""
        block = data if not self._rest and data.endswith(b"\n\n") else self._whole_events(data)
        if not block:
            self.verbatim = False
            return b""
        if not self.started or not self.plain(block):
            block = self._sift(block)
        self.verbatim = self.started and self.end is None and self._rename is None and not self._rest
        if self._rename is not None:
            block = self._rename.apply(block)
        return block

    def _whole_events(self, data: bytes) -> bytes:
        rest = self._rest
        searched = max(0, len(rest) - 3)
        rest += data
        lf, crlf = rest.rfind(b"\n\n", searched), rest.rfind(b"\n\r\n", searched)
        if lf < 0 and crlf < 0:
            if len(rest) > MAX_EVENT_BYTES:
                raise OverflowError(f"one event of the stream is longer than {MAX_EVENT_BYTES} bytes")
            return b""
        cut = max(lf + 2, crlf + 3)
        block = bytes(rest[:cut])
        del rest[:cut]
        return block

    def _sift(self, block: bytes) -> bytes:
        """Event by event; what stays of the block."""
        out: list[bytes] = []
        for event in split_events(block):
            mark = self._dialect.mark(event)
            if mark in (Mark.ABORT, Mark.ERROR):
                self.end = mark
                self.error_event = event
                break
            if mark is Mark.USAGE:
                self.usage = self._dialect.usage(event) or self.usage
                if self._drop_usage:
                    continue
            if not self.started and (event.startswith(b"data:") or b"\ndata:" in event):
                self.started = True
            out.append(event)
            if mark is Mark.DONE:
                self.end = mark
                break
        block = self._held + b"".join(out)
        if self.started:
            self._held = b""
            return block
        self._held = block if len(block) <= MAX_HELD_BYTES else b""  # comments only
        return b""


def split_events(block: bytes) -> list[bytes]:
    """A block of whole events into its events, each with its blank line; together they are the block again."""
    events: list[bytes] = []
    start = 0
    while start < len(block):
        lf, crlf = block.find(b"\n\n", start), block.find(b"\n\r\n", start)
        ends = [end for end in (lf + 2 if lf >= 0 else 0, crlf + 3 if crlf >= 0 else 0) if end]
        end = min(ends) if ends else len(block)
        events.append(block[start:end])
        start = end
    return events
