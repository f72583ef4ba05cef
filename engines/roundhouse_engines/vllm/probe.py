"""Probe of a vLLM server; the bundled engine and the simulator speak the same protocols and build on it."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp

from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import CacheBatch, LoadReport, ProbeTarget
from roundhouse_engines.vllm.event_stream import EventStream
from roundhouse_engines.vllm.metrics_page import read_page

HEALTH_TIMEOUT_S: Final = 1.0
METRICS_TIMEOUT_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 30.0
UNKNOWN: Final = "unknown"
ERROR_TYPES: Final = frozenset(
    {
        "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "rate_limit_error",
        "server_error", "internal_error", "overloaded_error", "BadRequestError", "NotFoundError", "UnauthorizedError",
        "InternalServerError", "ServiceUnavailableError", "NotImplementedError", "Bad Request", "Not Found",
    }
)  # fmt: skip


class VllmProbe:
    """``kind`` and ``snapshots`` (whether the engine answers whole-cache snapshot requests) vary by engine."""

    kind = "vllm"
    snapshots = False

    def __init__(self, target: ProbeTarget) -> None:
        self._target = target
        host = f"[{target.address}]" if ":" in target.address else target.address
        self._base = f"http://{host}:{target.port}"
        self._session: aiohttp.ClientSession | None = None
        self._stream: EventStream | None = None
        self._cache: Mapping[str, str] = {}

    async def healthy(self) -> bool:
        """False when nobody listens or the engine says it is dead; raises `ProbeError` when it is silent."""
        try:
            status, _ = await self._request("GET", "/health", HEALTH_TIMEOUT_S)
        except ConnectionRefused:
            return False
        return status == 200

    async def load(self) -> LoadReport:
        report, self._cache = read_page((await self._get("/metrics", METRICS_TIMEOUT_S)).decode("utf-8", "replace"))
        return report

    async def stack(self) -> Mapping[str, str]:
        version = _object(await self._get("/version", METRICS_TIMEOUT_S)).get("version", UNKNOWN)
        models = _object(await self._get("/v1/models", METRICS_TIMEOUT_S)).get("data") or [{}]
        await self.load()
        caching = self._cache.get("enable_prefix_caching")
        return {
            "engine": self.kind,
            "version": str(version),
            "maxModelLen": str(models[0].get("max_model_len") or UNKNOWN),
            "kvDtype": self._cache.get("cache_dtype", UNKNOWN),
            "blockSize": self._cache.get("block_size", UNKNOWN),
            "prefixCaching": {"True": "on", "False": "off"}.get(caching or "", UNKNOWN),
        }

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        return await self._tokenize({"prompt": text})

    async def tokenize_chat(self, body: Mapping[str, object]) -> tuple[int, ...] | None:
        return await self._tokenize(body)

    async def complete(self, body: Mapping[str, object]) -> Mapping[str, object]:
        return _object(await self._post("/v1/chat/completions", {"model": self._target.model_name, **body}))

    async def events(self) -> AsyncIterator[CacheBatch]:
        self._stream = EventStream(self._target.kv_events, self._target.kv_replay, snapshots=self.snapshots)
        async for batch in self._stream.batches():
            yield batch

    async def model_file(self, name: str) -> bytes | None:
        """A file that describes the model, for engines that bring their own; None when there is none."""
        return None

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._session is not None:
            await self._session.close()

    async def _tokenize(self, body: Mapping[str, object]) -> tuple[int, ...] | None:
        payload = {"model": self._target.model_name, **body}
        status, data = await self._request("POST", "/tokenize", REQUEST_TIMEOUT_S, payload)
        if status in (404, 405) and b"model" not in data:
            return None
        tokens = _object(_checked("/tokenize", status, data)).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise ProbeError("/tokenize answered without a list of token ids")
        return tuple(tokens)

    async def _get(self, path: str, timeout_s: float) -> bytes:
        return _checked(path, *await self._request("GET", path, timeout_s))

    async def _post(self, path: str, body: Mapping[str, object]) -> bytes:
        return _checked(path, *await self._request("POST", path, REQUEST_TIMEOUT_S, body))

    async def _request(
        self, method: str, path: str, timeout_s: float, body: Mapping[str, object] | None = None
    ) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(method, self._base + path, json=body, timeout=timeout) as response:
                return response.status, await response.read()
        except aiohttp.ClientConnectorError as error:
            raise ConnectionRefused(f"{path}: nobody listens at {self._base}") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ProbeError(f"{path}: no answer from {self._base} ({type(error).__name__})") from error


class ConnectionRefused(ProbeError):
    """Nobody listens on the engine's port."""


def _checked(path: str, status: int, data: bytes) -> bytes:
    if status != 200:
        raise ProbeError(f"{path} answered {status}{_error_type(data)}")
    return data


def _error_type(data: bytes) -> str:
    """A type that engines are known to give. Nothing else of the body: it may hold the prompt."""
    try:
        body = json.loads(data)
        found = (body.get("error") or body).get("type")
    except (ValueError, AttributeError):
        return ""
    return f" ({found})" if found in ERROR_TYPES else ""


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ProbeError(f"the engine answered with {len(data)} bytes that are no JSON") from error
    if not isinstance(value, dict):
        raise ProbeError(f"the engine answered with {type(value).__name__} where an object was expected")
    return value


PROBE = VllmProbe
