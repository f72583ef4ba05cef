"""`Cluster` on a real API server, through the official asyncio client. The only module that imports it.

The client gives addresses, credentials (renewed by themselves) and connections; requests are made of plain dicts, as
everywhere in the operator. A status is replaced by a JSON patch, because a merge would keep fields that are gone.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec
from kubernetes.aio import client, config

from roundhouse_operator.cluster import (
    FIELD_MANAGER,
    AlreadyExists,
    Cluster,
    ClusterError,
    Conflict,
    Expired,
    Invalid,
    Kind,
    NotFound,
    Obj,
    WatchEvent,
)

_PAGE: Final = 500
_MOST_TRIES: Final = 10
_LONGEST_PAUSE_S: Final = 10
_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_JSON_PATCH: Final = "application/json-patch+json"

Query = Mapping[str, str]


@asynccontextmanager
async def connect(
    request_timeout_s: float, watch_timeout_s: float = 300.0, *, kubeconfig: str | None = None
) -> AsyncIterator["KubernetesCluster"]:
    """The cluster that this pod runs in, or else the one of a kubeconfig (by default the user's).

    Raises `ClusterError` when there is neither.
    """
    settings = client.Configuration()
    settings.client_session_kwargs = {"trust_env": False}  # ~/.netrc and proxies would be looked up for every request
    try:
        try:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            await config.load_kube_config(kubeconfig, client_configuration=settings)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise ClusterError(f"no cluster: neither inside one nor a usable kubeconfig ({error})") from error
    async with client.ApiClient(settings) as api:
        yield KubernetesCluster(api, request_timeout_s, watch_timeout_s)


class KubernetesCluster(Cluster):
    """``request_timeout_s`` bounds one request; ``watch_timeout_s`` is after how long the server ends a watch."""

    def __init__(self, api: Any, request_timeout_s: float, watch_timeout_s: float) -> None:
        self._api = api
        self._timeout = aiohttp.ClientTimeout(total=request_timeout_s)
        self._watch_timeout_s = watch_timeout_s

    async def get(self, kind: Kind, namespace: str, name: str) -> Obj:
        return await self._ask("GET", _path(kind, namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> tuple[list[Obj], str]:
        found: list[Obj] = []
        query = {"limit": str(_PAGE), **_selector(labels)}
        while True:
            page = await self._ask("GET", _path(kind, namespace), query)
            meta = page.get("metadata") or {}
            found += [{"apiVersion": kind.api_version, "kind": kind.kind, **obj} for obj in page.get("items") or []]
            if not meta.get("continue"):
                return found, str(meta.get("resourceVersion", ""))
            query["continue"] = meta["continue"]

    async def create(self, kind: Kind, obj: Obj) -> Obj:
        path = _path(kind, obj["metadata"].get("namespace"))
        try:
            return await self._ask("POST", path, {"fieldManager": FIELD_MANAGER}, obj)
        except Conflict as error:
            raise AlreadyExists(str(error), error.status) from error

    async def apply(self, kind: Kind, obj: Obj, *, force: bool = False) -> Obj:
        meta = obj["metadata"]
        body = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
        path = _path(kind, meta.get("namespace"), meta["name"])
        query = {"fieldManager": FIELD_MANAGER, **({"force": "true"} if force else {})}
        return await self._ask("PATCH", path, query, body, _APPLY)

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> None:
        options: Obj = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._ask("DELETE", _path(kind, namespace, name), {}, options)
        except NotFound:
            return
        except Conflict:
            if uid is None:
                raise

    async def patch_status(self, kind: Kind, namespace: str, name: str, status: Obj, *, uid: str | None = None) -> Obj:
        patch: list[Obj] = [{"op": "add", "path": "/status", "value": status}]
        if uid is not None:
            patch.insert(0, {"op": "test", "path": "/metadata/uid", "value": uid})
        path = f"{_path(kind, namespace, name)}/status"
        try:
            return await self._ask("PATCH", path, {"fieldManager": FIELD_MANAGER}, patch, _JSON_PATCH)
        except Invalid as error:  # a failed test gets the same status as a bad status, and no better words
            if uid is not None and (await self.get(kind, namespace, name))["metadata"]["uid"] != uid:
                raise Conflict(f"{kind.kind} {name} is not the one of uid {uid}", 409) from error
            raise

    async def watch(
        self, kind: Kind, namespace: str | None, resource_version: str, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[WatchEvent]:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(int(self._watch_timeout_s)),
            **_selector(labels),
        }
        silence = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeout.total, sock_read=self._watch_timeout_s + 10
        )
        async with self._open("GET", _path(kind, namespace), query, timeout=silence) as response:
            async for line in response.content:
                if line.strip():
                    yield _event(kind, msgspec.json.decode(line))

    async def _ask(
        self, method: str, path: str, query: Query | None = None, body: Any = None, content: str = _JSON
    ) -> Obj:
        async with self._open(method, path, query or {}, body, content) as response:
            answer: Obj = msgspec.json.decode(await response.read())
            return answer

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Query,
        body: Any = None,
        content: str = _JSON,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request, sent again when the server is too busy; other failures become a `ClusterError` that names it."""
        what = f"{method} {path}"
        try:
            request = await self._api.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": _JSON, "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
            )
            async with await self._send(request, timeout or self._timeout) as response:
                if response.status >= 300:
                    raise _refused(what, response.status, await response.text())
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ClusterError(f"{what}: {type(error).__name__}: {error}") from error

    async def _send(self, request: Any, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Again, as the server asks, while it is too busy (429 with ``Retry-After``)."""
        tries = 0
        while True:
            tries += 1
            response: aiohttp.ClientResponse = (await self._api.call_api(*request, _request_timeout=timeout)).response
            pause_s = response.headers.get("retry-after", "") if response.status == 429 else ""
            if not pause_s.isdigit() or tries == _MOST_TRIES:
                return response
            response.release()
            await asyncio.sleep(min(int(pause_s), _LONGEST_PAUSE_S))


def _path(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    root = f"/api/{kind.api_version}" if "/" not in kind.api_version else f"/apis/{kind.api_version}"
    scope = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root}{scope}/{kind.plural}" + (f"/{quote(name)}" if name else "")


def _selector(labels: Mapping[str, str] | None) -> dict[str, str]:
    return {"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items())} if labels else {}


def _event(kind: Kind, event: Obj) -> WatchEvent:
    obj: Obj = event["object"]
    if event["type"] == "ERROR":
        raise _refused(f"watch {kind.plural}", int(obj.get("code") or 0), json.dumps(obj))
    return WatchEvent(event["type"], obj)


def _refused(what: str, status: int, text: str) -> ClusterError:
    """The error of this status, with the server's own words."""
    try:
        said = str(json.loads(text).get("message") or text)
    except (ValueError, AttributeError):
        said = text[:300]
    kinds: dict[int, type[ClusterError]] = {404: NotFound, 409: Conflict, 410: Expired, 422: Invalid}
    return kinds.get(status, ClusterError)(f"{what}: {said}", status)
