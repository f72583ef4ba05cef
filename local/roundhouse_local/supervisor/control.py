"""The supervisor's side of the control socket."""

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from roundhouse_operator.cluster import (
    CONFIG_MAP,
    ENGINE_REPLICA,
    INFERENCE_SERVICE,
    POD,
    SECRET,
    ClusterError,
    Kind,
    NotFound,
    Obj,
)

from roundhouse_local.api import NODE, MemoryCluster
from roundhouse_local.api.store import resource_name
from roundhouse_local.errors import LocalError, UserError
from roundhouse_local.supervisor.explain import explain
from roundhouse_local.supervisor.gateways import Gateways
from roundhouse_local.supervisor.requests import LIMIT
from roundhouse_local.supervisor.tables import PLAIN_COLUMNS, POD_COLUMNS, Column, aligned, header, row

logger = logging.getLogger(__name__)

CLI_MANAGER = "roundhouse-cli"
Answer = Mapping[str, Any] | list[Any]

KINDS: Mapping[str, Kind] = {
    name: kind
    for kind, short in (
        (INFERENCE_SERVICE, "infsvc"),
        (ENGINE_REPLICA, "erep"),
        (POD, "po"),
        (SECRET, "secret"),
        (CONFIG_MAP, "cm"),
        (NODE, "no"),
    )
    for name in (short, kind.plural, kind.kind.lower(), resource_name(kind))
}


class Control:
    """Serves one request per connection. ``status`` and ``restart_operator`` come from the supervisor."""

    def __init__(
        self,
        cluster: MemoryCluster,
        gateways: Gateways,
        columns: Mapping[str, tuple[Column, ...]],
        logs: Path,
        *,
        status: Callable[[], Mapping[str, Any]],
        restart_operator: Callable[[], Awaitable[None]],
    ) -> None:
        self._cluster, self._gateways, self._logs = cluster, gateways, logs
        self._columns = {POD.plural: POD_COLUMNS, **columns}
        self._status, self._restart_operator = status, restart_operator
        self._verbs: Mapping[str, Callable[[Obj], Awaitable[Answer]]] = {
            "get": self._get,
            "apply": self._apply,
            "delete": self._delete,
            "logs": self._log_files,
            "explain": self._explain,
            "status": self._tell_status,
            "restart-operator": self._new_operator,
        }

    async def serve(self, path: Path) -> None:
        """Until cancelled. Only the user can connect."""
        server = await asyncio.start_unix_server(self._connection, path, limit=LIMIT)
        os.chmod(path, 0o600)
        async with server:
            await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(await reader.readline())
            writer.write(json.dumps(answer).encode())
            await writer.drain()
        except (OSError, ValueError, asyncio.LimitOverrunError) as error:
            logger.warning("control_connection_broke", extra={"error": str(error)})
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            request = json.loads(line)
            return {"result": await self._verbs[request["verb"]](request)}
        except UserError as error:
            return {"error": str(error), "code": 2}
        except (LocalError, ClusterError) as error:
            return {"error": str(error), "code": 1}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"the request cannot be read: {error!r}; is this CLI of another version?", "code": 2}

    # Verbs.

    async def _get(self, request: Obj) -> Answer:
        """A table or objects of one kind; by name only that one."""
        kind, namespace, name = kind_of(request["kind"]), request["namespace"], request.get("name")
        if name:
            objects = [await self._cluster.get(kind, namespace or "default", name)]
        else:
            objects, _ = await self._cluster.list(kind, None if kind == NODE else namespace)
        columns, wide = self._columns.get(kind.plural, PLAIN_COLUMNS), bool(request.get("wide"))
        namespaced = namespace is None and kind != NODE
        now = time.time()
        rows = [row(obj, columns, now, wide=wide, namespaced=namespaced) for obj in objects]
        lines = aligned([header(columns, wide=wide, namespaced=namespaced), *rows]) if rows else []
        return {"objects": objects, "lines": lines, "kind": kind.kind}

    async def _apply(self, request: Obj) -> Answer:
        """One line for each object; objects after a refused one are applied all the same."""
        results = []
        for item in request["objects"]:
            obj = item["object"]
            try:
                results.append({"line": await self._apply_one(kind_of(obj["kind"]), obj)})
            except ClusterError as error:
                results.append({"error": f"{item['source']}: {error}"})
        return results

    async def _apply_one(self, kind: Kind, obj: Obj) -> str:
        metadata = obj["metadata"]
        try:
            before = await self._cluster.get(kind, metadata["namespace"], metadata["name"])
        except NotFound:
            before = None
        after = await self._cluster.apply(kind, obj, manager=CLI_MANAGER)
        if before is None:
            what = "created"
        else:
            versions = {o["metadata"]["resourceVersion"] for o in (before, after)}
            what = "configured" if len(versions) > 1 else "unchanged"
        return f"{kind.kind.lower()}/{metadata['name']} {what}"

    async def _delete(self, request: Obj) -> Answer:
        results = []
        for target in request["targets"]:
            kind, namespace, name = kind_of(target["kind"]), target["namespace"], target["name"]
            try:
                await self._cluster.get(kind, namespace, name)
                await self._cluster.delete(kind, namespace, name)
                results.append({"line": f"{kind.kind.lower()}/{name} deleted"})
            except ClusterError as error:
                results.append({"error": str(error)})
        return results

    async def _log_files(self, request: Obj) -> Answer:
        """The present and the last log of one container of a replica; by default of its engine."""
        namespace, name = request["namespace"], request["name"]
        pod = await self._cluster.get(POD, namespace, name)
        spec = pod["spec"]
        names = [c["name"] for c in [*spec["containers"], *(spec.get("initContainers") or ())]]
        container = request.get("container") or names[0]
        if container not in names:
            raise UserError(f"pod {name} has no container {container}; it has {', '.join(names)}")
        folder = self._logs / f"{namespace}_{name}" / container
        files = sorted(folder.glob("*.log"), key=lambda path: int(path.stem))
        return {"files": [str(path) for path in files[-2:]], "container": container}

    async def _explain(self, request: Obj) -> Answer:
        admins = [f"http://{self._gateways.host}:{gateway.admin_port}" for gateway in self._gateways.all]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as http:
            return {"text": await explain(request["what"], request["namespace"], self._cluster, admins, http)}

    async def _tell_status(self, request: Obj) -> Answer:
        return dict(self._status())

    async def _new_operator(self, request: Obj) -> Answer:
        await self._restart_operator()
        return {}


def kind_of(name: str) -> Kind:
    """Raises `UserError`."""
    kind = KINDS.get(str(name).lower())
    if kind is None:
        raise UserError(f"kind {name} is not known; known are infsvc, erep, pods, secrets, configmaps, nodes")
    return kind
