"""The JSON body of a request: what the gateway reads of it, and the only changes that it makes to its bytes.

Two splices exist, and a body in which a key occurs twice gets neither:

* ``usage``: a streaming request that does not ask for usage gets ``stream_options.include_usage``; the usage-only event
  is then taken out of the answer again (`stream_relay`);
* ``model``: a served name that is not the engine's own is replaced by the engine's.
"""

from typing import Any, Final

import orjson

from roundhouse_gateway.errors import ApiError
from roundhouse_gateway.json_spans import is_unambiguous, value_span

_ASK: Final = b'"include_usage":true'


class RequestBody:
    """``raw`` as it came, ``fields`` parsed (the last of two equal keys counts, as in the engines)."""

    __slots__ = ("_unambiguous", "fields", "model", "raw", "streams")

    def __init__(self, raw: bytes, fields: dict[str, Any], model: str, streams: bool) -> None:
        self.raw = raw
        self.fields = fields
        self.model = model
        self.streams = streams
        self._unambiguous: bool | None = None

    @property
    def unambiguous(self) -> bool:
        known = self._unambiguous
        if known is None:
            known = self._unambiguous = is_unambiguous(self.raw, self.fields)
        return known

    @property
    def needs_usage_splice(self) -> bool:
        """Streams, did not ask, and its ``stream_options`` are nothing that the engine should refuse."""
        if not self.streams or not self.unambiguous:
            return False
        options = self.fields.get("stream_options")
        return options is None or (isinstance(options, dict) and options.get("include_usage") in (None, False))

    def for_engine(self, engine_model: str) -> bytes:
        """The bytes to send to an engine that answers to ``engine_model`` (empty: to any name)."""
        raw = self.raw
        if engine_model and engine_model != self.model and self.unambiguous:
            raw = set_model(raw, engine_model)
        return ask_for_usage(raw, self.fields.get("stream_options")) if self.needs_usage_splice else raw


def read_body(raw: bytes) -> RequestBody:
    """Raises `ApiError` for what no engine could serve."""
    if not raw:
        raise ApiError(400, "invalid_json", "The request has no body; send a JSON object.")
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "invalid_json", f"The request body is not valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "invalid_request", "The request body must be a JSON object.")
    model = fields.get("model")
    if model is None:
        raise ApiError(400, "invalid_request", "The request names no model; set 'model'.", param="model")
    if not isinstance(model, str) or not model:
        raise ApiError(400, "invalid_request", "'model' must be a string that is not empty.", param="model")
    streams = fields.get("stream")
    if streams is not None and not isinstance(streams, bool):
        raise ApiError(400, "invalid_request", "'stream' must be true or false.", param="stream")
    return RequestBody(raw, fields, model, bool(streams))


def set_model(raw: bytes, model: str) -> bytes:
    """The body with the value of ``model`` replaced."""
    span = value_span(raw, "model")
    if span is None:
        return raw
    return raw[: span[0]] + orjson.dumps(model) + raw[span[1] :]


def ask_for_usage(raw: bytes, options: dict[str, Any] | None) -> bytes:
    """The body with ``stream_options.include_usage`` true; ``options`` is what ``stream_options`` is now."""
    span = value_span(raw, "stream_options") if options is not None or b'"stream_options"' in raw else None
    if span is None:
        brace = raw.index(b"{") + 1
        return raw[:brace] + b'"stream_options":{' + _ASK + b"}," + raw[brace:]
    begin, end = span
    if not options:  # null or an empty object
        return raw[:begin] + b"{" + _ASK + b"}" + raw[end:]
    inner = value_span(raw, "include_usage", begin)
    if inner is not None:
        return raw[: inner[0]] + b"true" + raw[inner[1] :]
    return raw[: begin + 1] + _ASK + b"," + raw[begin + 1 :]
