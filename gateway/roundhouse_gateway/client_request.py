"""One HTTP request of a client, parsed, and its form for an engine."""

from typing import Final

from roundhouse_engines.dialect import load_dialect
from roundhouse_engines.launch import ENGINE_KINDS

_HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
    }
)  # fmt: skip

_REWRITTEN = frozenset(
    {b"host", b"content-length", b"content-encoding", b"expect", b"accept-encoding", b"x-request-id"}
)
"""The gateway sets these itself, or takes only their default: it must be able to read what goes and what comes back."""

NOT_FORWARDED: Final = (
    _HOP_BY_HOP | _REWRITTEN | frozenset[bytes]().union(*(load_dialect(kind).control_headers for kind in ENGINE_KINDS))
)
"""Request headers (lower case) that never reach an engine; control headers of every dialect among them."""

NOT_RELAYED: Final = _HOP_BY_HOP | frozenset({b"content-length", b"x-request-id"})
"""Response headers (lower case) that never reach a client as the engine sent them."""


_HOSTS_KEPT: Final = 64


class ClientHead:
    """``lines``: the header lines to forward. ``chunked_reply``: the client understands chunked transfer (HTTP/1.1).
    ``api_key``: None until `api_keys` has taken it out of the lines."""

    __slots__ = ("_begun", "api_key", "chunked_reply", "keep_alive", "lines", "method", "target")

    def __init__(self, method: bytes, target: bytes, lines: bytes, keep_alive: bool, chunked_reply: bool) -> None:
        self.method = method
        self.target = target
        self.lines = lines
        self.keep_alive = keep_alive
        self.chunked_reply = chunked_reply
        self.api_key: bytes | None = None
        self._begun: dict[bytes, bytes] = {}

    def begin_for(self, host: bytes) -> bytes:
        """The head for an engine up to the request's id."""
        begun = self._begun.get(host)
        if begun is None:
            if len(self._begun) >= _HOSTS_KEPT:
                self._begun.clear()
            begun = self._begun[host] = b"%b %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: " % (
                self.method, self.target, host, self.lines,
            )  # fmt: skip
        return begun


class ClientRequest:
    __slots__ = ("body", "head")

    def __init__(self, head: ClientHead, body: bytes) -> None:
        self.head = head
        self.body = body

    def for_engine(self, host: bytes, request_id: bytes, body: bytes) -> bytes:
        size = str(len(body)).encode()
        return b"".join([self.head.begin_for(host), request_id, b"\r\ncontent-length: ", size, b"\r\n\r\n", body])
