"""HTTP/1.1 bytes that the gateway itself writes: heads, chunks, error bodies and error events."""

from http import HTTPStatus
from typing import Final

import orjson

from roundhouse_gateway.errors import ApiError

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def error_object(error: ApiError) -> bytes:
    """``{"error":{"message","type","param","code"}}``."""
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return orjson.dumps({"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}})


def error_event(error: ApiError) -> bytes:
    return b"data: " + error_object(error) + b"\n\n"


def error_reply(error: ApiError, *, request_id: bytes, keep_alive: bool, head_only: bool = False) -> bytes:
    headers = [b"x-request-id: " + request_id + b"\r\n"]
    if error.retry_after_s is not None:
        headers.append(b"retry-after: %d\r\n" % error.retry_after_s)
    if error.status == 401:
        headers.append(b"www-authenticate: Bearer\r\n")
    if error.allow is not None:
        headers.append(b"allow: " + error.allow.encode() + b"\r\n")
    return json_reply(error.status, error_object(error), headers, keep_alive=keep_alive, head_only=head_only)


def json_reply(status: int, body: bytes, headers: list[bytes], *, keep_alive: bool, head_only: bool = False) -> bytes:
    """``headers`` are whole lines."""
    return b"".join(
        [
            status_line(status),
            b"content-type: application/json\r\n",
            *headers,
            b"content-length: %d\r\n" % len(body),
            b"\r\n" if keep_alive else b"connection: close\r\n\r\n",
            b"" if head_only else body,
        ]
    )
