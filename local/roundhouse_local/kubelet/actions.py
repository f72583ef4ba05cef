"""What probes and hooks do: an HTTP GET, a TCP connection, a program, a sleep."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from roundhouse_operator.cluster import Obj

from roundhouse_local.errors import SpawnError
from roundhouse_local.kubelet.mounts import Mount, rewrite_all
from roundhouse_local.kubelet.probes import Outcome
from roundhouse_local.processes import ProcessHost

HttpSession = Callable[[], aiohttp.ClientSession]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a container's actions happen. ``ports`` by name."""

    address: str
    ports: Mapping[str, int]
    env: Mapping[str, str]
    folder: Path
    mounts: Sequence[Mount] = field(default=())


class Actions:
    """The kubelet's hands. Cancelling `run` stops what it started."""

    def __init__(self, http: HttpSession, processes: ProcessHost) -> None:
        self._http = http
        self._processes = processes

    async def run(self, action: Obj, place: Place) -> Outcome:
        """Whether the action succeeded; it has no deadline of its own."""
        if spec := action.get("httpGet"):
            return await self._get(spec, place)
        if spec := action.get("tcpSocket"):
            return await _connect(spec, place)
        if spec := action.get("exec"):
            return await self._execute(spec, place)
        if spec := action.get("sleep"):
            await asyncio.sleep(spec["seconds"])
            return Outcome(True)
        return Outcome(False, f"{', '.join(action)}: not supported in the local run")

    async def _get(self, spec: Obj, place: Place) -> Outcome:
        try:
            url = f"{spec.get('scheme', 'HTTP').lower()}://{spec.get('host') or place.address}:{_port(spec, place)}"
            path = spec.get("path") or "/"
            headers = {header["name"]: header["value"] for header in spec.get("httpHeaders") or ()}
            async with self._http().get(
                f"{url}/{path.removeprefix('/')}", headers=headers, ssl=False, allow_redirects=False
            ) as answer:
                if 200 <= answer.status < 400:
                    return Outcome(True)
                body = (await answer.content.read(1024)).decode(errors="replace")
                return Outcome(False, f"HTTP probe failed with statuscode: {answer.status}: {body.strip()}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Outcome(False, f"GET failed: {error}")

    async def _execute(self, spec: Obj, place: Place) -> Outcome:
        try:
            argv = rewrite_all(spec["command"], place.mounts)
            process = await self._processes.spawn(argv, place.env, place.folder, Path("/dev/null"))
        except SpawnError as error:
            return Outcome(False, str(error))
        try:
            ended = await process.wait()
        except asyncio.CancelledError:
            process.kill()
            raise
        return Outcome(ended.shell_code == 0, f"exit code {ended.shell_code}" if ended.shell_code else "")


async def _connect(spec: Obj, place: Place) -> Outcome:
    try:
        _, writer = await asyncio.open_connection(spec.get("host") or place.address, _port(spec, place))
    except (OSError, ValueError) as error:
        return Outcome(False, f"connection failed: {error}")
    writer.close()
    return Outcome(True)


def _port(spec: Obj, place: Place) -> int:
    port = spec["port"]
    if isinstance(port, str) and not port.isdecimal():
        if port not in place.ports:
            raise ValueError(f"container has no port named {port!r}")
        return place.ports[port]
    return int(port)
