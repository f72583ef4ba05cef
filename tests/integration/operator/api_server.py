"""The in-memory API behind the paths and verbs of a real API server, for the clients that talk HTTP."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from roundhouse_local.api import NODE, MemoryCluster
from roundhouse_operator.cluster import (
    CONFIG_MAP,
    ENGINE_REPLICA,
    EVENT,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    POD_DISRUPTION_BUDGET,
    SECRET,
    ClusterError,
    Expired,
    Kind,
    Obj,
)
from roundhouse_operator.leader import LEASE
from roundhouse_operator.redis_password import DEPLOYMENT

# kopf waits until it has discovered these two, although it is told not to watch them.
NAMESPACE = Kind("v1", "Namespace", "namespaces")
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
KINDS = {
    (kind.api_version, kind.plural): kind
    for kind in (
        INFERENCE_SERVICE, ENGINE_REPLICA, POD, SECRET, CONFIG_MAP, EVENT, LEASE, DEPLOYMENT, NODE, NAMESPACE, CRD,
        POD_DISRUPTION_BUDGET, NETWORK_POLICY,
    )
}  # fmt: skip
CLUSTER_SCOPED = (NODE, NAMESPACE, CRD)
PAGE = 2


class ApiServer:
    """``requests`` are method and path of everything asked; ``broken``: a status that is answered to everything.

    ``throttling``: every second request is answered 429; ``throttled`` counts them.

    ``deaf``: watches of these kinds lose their events; later they are told that theirs are too old.
    """

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.requests: list[str] = []
        self.broken = 0
        self.throttling = False
        self.throttled = 0
        self.deaf: set[Kind] = set()
        self.port = 0
        self._runner: web.AppRunner | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ApiServer"]:
        app = web.Application(middlewares=[self._errors])
        for root in ("/api/{version}", "/apis/{group}/{version}"):
            for scope in ("", "/namespaces/{namespace}"):
                app.router.add_route("*", f"{root}{scope}/{{plural}}", self._collection)
                app.router.add_route("*", f"{root}{scope}/{{plural}}/{{name}}", self._object)
                app.router.add_patch(f"{root}{scope}/{{plural}}/{{name}}/status", self._status)
            app.router.add_get(root, self._resources)
        app.router.add_get("/api", self._versions)
        app.router.add_get("/apis", self._groups)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        try:
            yield self
        finally:
            self.cluster.drop_watches()
            await self._runner.cleanup()

    def write_kubeconfig(self, path: Path) -> None:
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {"token": "t"}}]}
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", **config}))

    @web.middleware
    async def _errors(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if self.broken:
            return web.json_response({"kind": "Status", "message": "broken on purpose"}, status=self.broken)
        if self.throttling and len(self.requests) % 2:
            self.throttled += 1
            body = {"kind": "Status", "code": 429, "message": "too many requests"}
            return web.json_response(body, status=429, headers={"retry-after": "1"})
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except ClusterError as error:
            body = {"kind": "Status", "code": error.status, "message": str(error)}
            return web.json_response(body, status=error.status or 500)

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        kind, namespace = _kind(request), request.match_info.get("namespace")
        if request.method == "POST":
            made = await self.cluster.create(kind, await request.json(), manager=request.query["fieldManager"])
            return web.json_response(made, status=201)
        if request.query.get("watch"):
            return await self._watch(request, kind, namespace)
        objs, version = await self.cluster.list(kind, namespace, _labels(request))
        start = int(request.query.get("continue") or 0)
        meta = {"resourceVersion": version}
        if "limit" in request.query and start + PAGE < len(objs):
            meta["continue"] = str(start + PAGE)
        page = objs[start : start + PAGE] if "limit" in request.query else objs
        items = [{key: value for key, value in obj.items() if key not in ("kind", "apiVersion")} for obj in page]
        return web.json_response({"kind": f"{kind.kind}List", "metadata": meta, "items": items})

    async def _watch(self, request: web.Request, kind: Kind, namespace: str | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        version, lost = request.query.get("resourceVersion", ""), False
        try:
            async for event in self.cluster.watch(kind, namespace, version, _labels(request)):
                if kind in self.deaf:
                    lost = True
                    continue
                if lost:
                    raise Expired("too old resource version", 410)
                await response.write(json.dumps({"type": event.type, "object": event.object}).encode() + b"\n")
        except ClusterError as error:
            status = {"kind": "Status", "code": error.status, "message": str(error)}
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        return response

    async def _object(self, request: web.Request) -> web.Response:
        kind, name = _kind(request), request.match_info["name"]
        namespace = request.match_info.get("namespace", "")
        if request.method == "DELETE":
            options = await request.json()
            there = await self.cluster.get(kind, namespace, name)
            uid = (options.get("preconditions") or {}).get("uid")
            if uid is not None and uid != there["metadata"]["uid"]:
                return web.json_response({"message": "uid precondition failed"}, status=409)
            await self.cluster.delete(kind, namespace, name, grace_seconds=options.get("gracePeriodSeconds"))
            return web.json_response({"kind": "Status", "status": "Success"})
        if request.method == "PATCH":
            assert request.content_type == "application/apply-patch+yaml"
            body = await request.json()
            manager, force = request.query["fieldManager"], request.query.get("force") == "true"
            return web.json_response(await self.cluster.apply(kind, body, manager=manager, force=force))
        return web.json_response(await self.cluster.get(kind, namespace, name))

    async def _status(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/json-patch+json"
        kind, info = _kind(request), request.match_info
        there = await self.cluster.get(kind, info["namespace"], info["name"])
        *tests, add = await request.json()
        if any(test["value"] != there["metadata"]["uid"] for test in tests):
            return web.json_response({"message": "the server rejected our request"}, status=422)
        return web.json_response(await self.cluster.patch_status(kind, info["namespace"], info["name"], add["value"]))

    # Discovery, as far as kopf asks for it.

    async def _versions(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, request: web.Request) -> web.Response:
        groups = []
        for group_version in {version for version, _ in KINDS if "/" in version}:
            group, version = group_version.split("/")
            found = {"groupVersion": group_version, "version": version}
            groups.append({"name": group, "versions": [found], "preferredVersion": found})
        return web.json_response({"kind": "APIGroupList", "groups": groups})

    async def _resources(self, request: web.Request) -> web.Response:
        wanted = request.path.removeprefix("/apis/").removeprefix("/api/")
        verbs = ["get", "list", "watch", "create", "patch", "delete"]
        resources = [
            {
                "name": kind.plural,
                "singularName": "",
                "kind": kind.kind,
                "namespaced": kind not in CLUSTER_SCOPED,
                "verbs": verbs,
            }
            for (version, _), kind in KINDS.items()
            if version == wanted
        ]
        return web.json_response({"kind": "APIResourceList", "groupVersion": wanted, "resources": resources})


def _kind(request: web.Request) -> Kind:
    info = request.match_info
    version = f"{info['group']}/{info['version']}" if "group" in info else info["version"]
    return KINDS[version, info["plural"]]


def _labels(request: web.Request) -> Obj | None:
    text = request.query.get("labelSelector")
    return dict(part.split("=", 1) for part in text.split(",")) if text else None
