"""An engine's HTTP answer taken apart: its head, and a chunked body. Pure.

Heads are read by httptools and remembered (`heads`). Bodies are framed here: an event of a stream is mostly one chunk
in one read, and is recognised as such with two comparisons.
"""

from typing import Final

import httptools

from roundhouse_gateway.client_request import NOT_RELAYED
from roundhouse_gateway.heads import HeadCache, cut_length
from roundhouse_gateway.replies import status_line

MAX_HEAD_BYTES: Final = 64 << 10
_MAX_SIZE_LINE: Final = 4096
_MAX_SIZE_DIGITS: Final = 8
_ZERO: Final = ord("0")


class AnswerHead:
    """``relayed``: status line and headers as they go to the client. ``reusable``: the connection can carry another
    request afterwards. ``plain``: equal bytes but for the digits of its one length are an equal head."""

    __slots__ = ("chunked", "has_length", "is_event_stream", "plain", "relayed", "reusable", "status")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], reusable: bool) -> None:
        """Raises `ValueError` when the body's end cannot be told for certain."""
        fields = {name.lower(): value for name, value in headers}
        lengths = {value for name, value in headers if name.lower() == b"content-length"}
        coding = fields.get(b"transfer-encoding", b"").strip().lower()
        if coding not in (b"", b"identity", b"chunked") or len(lengths) > 1:
            raise ValueError("body length unclear")
        self.status = status
        self.plain = False
        self.chunked = coding == b"chunked"
        self.has_length = bool(lengths) and not self.chunked
        self.is_event_stream = fields.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        self.reusable = reusable and (self.chunked or self.has_length or not self.has_body)
        lines = [b"%b: %b\r\n" % (name, value) for name, value in headers if name.lower() not in NOT_RELAYED]
        self.relayed = status_line(status) + b"".join(lines)

    @property
    def has_body(self) -> bool:
        return self.status not in (204, 304)


class _HeadReader:
    """httptools' callbacks for one head."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = self.reusable = False
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True
        self.reusable = self.parser.should_keep_alive()


_known: HeadCache[AnswerHead] = HeadCache()


def read_head(head: bytes) -> tuple[AnswerHead, int]:
    """(the head, its content length or -1). Raises `ValueError` or an `httptools.HttpParserError`."""
    key, length = cut_length(head)
    known = _known.get(key)
    if known is not None:
        return known, length
    reader = _HeadReader()
    try:
        reader.parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        raise ValueError("an upgrade that nobody asked for") from None
    if not reader.complete:
        raise ValueError("answer head unclear")
    parsed = AnswerHead(reader.parser.get_status_code(), reader.headers, reader.reusable)
    if parsed.has_length and length < 0:
        return parsed, int(next(value for name, value in reader.headers if name.lower() == b"content-length"))
    parsed.plain = parsed.status >= 200
    _known.put(key, parsed)
    return parsed, length


class ChunkedBody:
    """Takes a chunked body out of its framing. ``complete``: the last chunk and its trailers were read."""

    __slots__ = ("_last_line", "_last_size", "_left", "_rest", "_trailers", "complete")

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0  # bytes of the present chunk and its line end that are still to come
        self._trailers = False
        self.complete = False
        self._last_line = b""  # of a chunk that came whole, with its line end
        self._last_size = 0  # of the read that it began

    def whole_chunk(self, data: bytes) -> int:
        """Where the body begins when ``data`` is just one chunk with its framing, else 0. Raises `ValueError`."""
        if self._left or self._rest or self._trailers:
            return 0
        if len(data) != self._last_size or not data.startswith(self._last_line):
            start = data.find(b"\r\n", 0, 10) + 2
            line = data[: start - 2]
            if start <= 2 or not line.isalnum() or data[0] == _ZERO or start + int(line, 16) + 2 != len(data):
                return 0
            self._last_line, self._last_size = data[:start], len(data)
        if data.endswith(b"\r\n"):
            return len(self._last_line)
        raise ValueError("chunk without an end")

    def feed(self, data: bytes) -> bytes:
        """The body's bytes in ``data``. Raises `ValueError`."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        parts: list[bytes] = []
        at, size = 0, len(data)
        while at < size:
            if self.complete:
                raise ValueError("more than one answer")
            if self._left:
                at = self._take(data, at, parts)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                if size - at > _MAX_SIZE_LINE:
                    raise ValueError("chunk size line too long")
                self._rest = data[at:]
                break
            line, at = data[at:end], end + 2
            if self._trailers:
                self.complete = not line
            elif chunk := _size(line.partition(b";")[0].strip()):
                self._left = chunk + 2
            else:
                self._trailers = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """What is there of the present chunk; returns where it ends."""
        body = max(0, self._left - 2)
        if body:
            parts.append(data[at : at + body])
        end = min(at + self._left, len(data))
        line_end = data[at + body : end]
        if line_end != b"\r\n"[body + 2 - self._left :][: len(line_end)]:
            raise ValueError("chunk without an end")
        self._left -= end - at
        return end


def _size(line: bytes) -> int:
    if not line.isalnum() or len(line) > _MAX_SIZE_DIGITS:
        raise ValueError("bad chunk size")
    return int(line, 16)
