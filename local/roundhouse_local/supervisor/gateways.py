"""Gateways are children of the supervisor: started, watched, started again."""

import asyncio
import logging
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from roundhouse_local.errors import StartError
from roundhouse_local.kubelet.backoff import Backoff, BackoffRule
from roundhouse_local.kubelet.logs import log_file, tail
from roundhouse_local.processes import Process, ProcessHost
from roundhouse_local.supervisor.settings import UpSettings
from roundhouse_local.supervisor.valkey import ValkeyAccess

logger = logging.getLogger(__name__)

RESTART = BackoffRule(initial_s=0.5, limit_s=10.0, reset_s=30.0)
LOOK_S = 0.2
DRAIN_S = 5


@dataclass(slots=True)
class Gateway:
    """One gateway as it is now. ``trouble``: the last line of one that does not stay up."""

    port: int
    process: Process | None = None
    ready: bool = False
    restarts: int = 0
    trouble: str = ""
    told: bool = False

    @property
    def admin_port(self) -> int:
        return self.port + 1


def check_ports(settings: UpSettings) -> None:
    """Raises `StartError` naming the first port that is taken."""
    for place, port in enumerate(settings.gateway_ports()):
        for number, what in ((port, f"gateway {place + 1}"), (port + 1, f"admin API of gateway {place + 1}")):
            if not 0 < number < 65536:
                raise StartError(f"port {number} ({what}) is not a port; choose another with --port")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((settings.host, number))
                except OSError as error:
                    raise StartError(
                        f"port {number} ({what}) on {settings.host} cannot be used: {error.strerror}; "
                        "choose another with --port"
                    ) from None


@dataclass
class Gateways:
    """`run` keeps them up and knows which are ready."""

    processes: ProcessHost
    settings: UpSettings
    home: Path
    access: ValkeyAccess
    env: Mapping[str, str]
    all: Sequence[Gateway] = field(init=False)

    def __post_init__(self) -> None:
        self.all = [Gateway(port) for port in self.settings.gateway_ports()]

    @property
    def ready(self) -> bool:
        return all(gateway.ready for gateway in self.all)

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=1.0)
        async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.TaskGroup() as group:
            for place, gateway in enumerate(self.all):
                group.create_task(self._keep(place, gateway))
                group.create_task(self._look(gateway, http))

    async def serve(self, models: Collection[str]) -> bool:
        """Whether every gateway has a ready replica of each of these models."""
        if not self.ready:
            return False
        offered = await asyncio.gather(*(self._names(gateway) for gateway in self.all))
        return all(set(models) <= names for names in offered)

    async def stop(self, grace_s: float) -> None:
        running = [gateway.process for gateway in self.all if gateway.process and gateway.process.exit is None]
        await asyncio.gather(*(process.stop(grace_s) for process in running))

    async def _keep(self, place: int, gateway: Gateway) -> None:
        backoff, loop = Backoff(RESTART), asyncio.get_running_loop()
        while True:
            log = log_file(self.home / "logs", "gateways", str(place), "gateway", gateway.restarts)
            gateway.process = await self.processes.spawn(self._command(place, gateway), self._env(), self.home, log)
            begun = loop.time()
            ended = await gateway.process.wait()
            gateway.ready = False
            gateway.trouble = (tail(log).strip().splitlines() or [f"exit code {ended.shell_code}"])[-1]
            logger.warning("gateway_ended", extra={"port": gateway.port, "code": ended.shell_code})
            await asyncio.sleep(backoff.delay(loop.time() - begun))
            gateway.restarts += 1

    async def _look(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        while True:
            try:
                async with http.get(f"http://{self.host}:{gateway.admin_port}/readyz") as answer:
                    gateway.ready = answer.status == 200
            except (aiohttp.ClientError, TimeoutError, OSError):
                gateway.ready = False
            if gateway.ready:
                gateway.trouble = ""
            await asyncio.sleep(LOOK_S)

    async def _names(self, gateway: Gateway) -> set[str]:
        """Served names of services with a ready replica, by the admin API, which asks for no key."""
        timeout = aiohttp.ClientTimeout(total=1.0)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as http,
                http.get(f"http://{self.host}:{gateway.admin_port}/admin/replicas") as answer,
            ):
                found = await answer.json(content_type=None)
                ready = [s for s in found["services"] if any(r["state"] == "ready" for r in s["replicas"])]
                return {name for service in ready for name in [service["service"], *service["servedNames"]]}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError):
            return set()

    @property
    def host(self) -> str:
        """Where this machine reaches them."""
        return "127.0.0.1" if self.settings.host == "0.0.0.0" else self.settings.host

    def _command(self, place: int, gateway: Gateway) -> list[str]:
        options: dict[str, object] = {
            "host": self.settings.host,
            "port": gateway.port,
            "admin-port": gateway.admin_port,
            "installation": "local",
            "redis-url": self.access.url,
            "catalogue-file": self.home / f"catalogue-{place}.json",
            "drain-timeout": DRAIN_S,
        }
        if self.settings.api_keys is not None:
            options["api-keys"] = self.settings.api_keys
        flags = [f"--{name}={value}" for name, value in options.items()]
        return [sys.executable, "-m", "roundhouse_gateway", *flags]

    def _env(self) -> dict[str, str]:
        return {**self.env, "RH_REDIS_PASSWORD": self.access.password}
