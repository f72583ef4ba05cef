"""One local run: Valkey, the in-memory API, the operator, the kubelet and the gateways, from start to orderly stop.

API, operator, kubelet and control socket are tasks of this process; Valkey, gateways, agents and engines are processes
under the warden. The first task that fails ends the run, and the end of the run ends every process.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from roundhouse_operator.api.crds import crds
from roundhouse_operator.api.parse import COMPLAINTS
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, POD
from roundhouse_operator.settings import Settings

from roundhouse_local.api import MemoryCluster, SchemaValidator
from roundhouse_local.errors import LocalError, StartError
from roundhouse_local.kubelet import AddressPool, Kubelet, KubeletSettings, base_environment
from roundhouse_local.manifests import Manifest
from roundhouse_local.processes import ProcessHost
from roundhouse_local.supervisor.control import CLI_MANAGER, Control
from roundhouse_local.supervisor.display import Display, curl_line
from roundhouse_local.supervisor.gateways import Gateways, check_ports
from roundhouse_local.supervisor.home import Home
from roundhouse_local.supervisor.operators import OperatorTask
from roundhouse_local.supervisor.progress import ServiceView, service_view
from roundhouse_local.supervisor.settings import UpSettings
from roundhouse_local.supervisor.tables import crd_columns
from roundhouse_local.supervisor.valkey import EmbeddedValkey, ValkeyAccess, new_access

logger = logging.getLogger(__name__)

SHOW_S = 0.25
GATEWAY_STOP_S = 6.0
VALKEY_STOP_S = 2.0


def make_validator() -> SchemaValidator:
    """The schemas and rules of both resources, as in a cluster with our CRDs."""
    return SchemaValidator(crds().values(), COMPLAINTS)


class Supervisor:
    """`run` until ``stop`` is set. What it needs of the world comes in: home, settings, display."""

    def __init__(self, settings: UpSettings, home: Home, display: Display) -> None:
        self._settings, self._home, self._display = settings, home, display
        self._cluster = MemoryCluster(make_validator())
        self._addresses = AddressPool()
        self._access = new_access(self._addresses)
        self._env = base_environment(os.environ, str(home.root / "bin"))
        self._operator = OperatorTask(self._cluster, self._access, operator_settings(settings, self._access))
        self._begun = time.monotonic()
        self._announced: set[str] = set()
        self._ready = False

    async def run(self, manifests: Sequence[Manifest], stop: asyncio.Event) -> None:
        """Raises `StartError` when a part that everything needs cannot be started or is lost."""
        check_ports(self._settings)
        self._display.say(f"Starting in {self._home.real}; what every part writes is below {self._home.real / 'logs'}")
        async with AsyncExitStack() as stack:
            processes = await stack.enter_async_context(ProcessHost())
            self._valkey = EmbeddedValkey(processes, self._access, self._home.root, self._env)
            await self._valkey.start()
            await stack.enter_async_context(self._cluster)
            kubelet = await stack.enter_async_context(self._kubelet(processes))
            self._gateways = Gateways(processes, self._settings, self._home.root, self._access, self._env)
            await self._run_tasks(processes, kubelet, manifests, stop)

    async def _run_tasks(
        self, processes: ProcessHost, kubelet: Kubelet, manifests: Sequence[Manifest], stop: asyncio.Event
    ) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                gateways = group.create_task(self._gateways.run())
                valkey = group.create_task(self._valkey.keep())
                others = [
                    group.create_task(kubelet.run()),
                    group.create_task(self._operator.run()),
                    group.create_task(self._control().serve(self._home.control)),
                    group.create_task(_watch_warden(processes)),
                ]
                show = group.create_task(self._show())
                for manifest in manifests:
                    await self._cluster.apply(manifest.kind, manifest.obj, manager=CLI_MANAGER)
                await stop.wait()
                show.cancel()
                await self._stop(gateways, valkey)
                for task in others:
                    task.cancel()
        except BaseExceptionGroup as errors:
            ours, foreign = errors.split(LocalError)
            if ours is None or foreign is not None:
                raise
            raise _most_telling(ours) from None

    async def _stop(self, gateways: "asyncio.Task[None]", valkey: "asyncio.Task[None]") -> None:
        """Services first, so that gateways still answer what is in flight; then gateways; Valkey last."""
        self._display.close()
        self._display.say("Stopping: replicas, gateways, Valkey. Ctrl-C again kills them.")
        await self._stop_replicas()
        gateways.cancel()
        await self._gateways.stop(GATEWAY_STOP_S)
        valkey.cancel()
        await self._valkey.stop(VALKEY_STOP_S)
        self._display.say("Stopped.")

    async def _stop_replicas(self) -> None:
        loop = asyncio.get_running_loop()
        grace = int(self._settings.stop_s)
        deadline = loop.time() + grace + 5
        services, _ = await self._cluster.list(INFERENCE_SERVICE)
        for service in services:
            metadata = service["metadata"]
            await self._cluster.delete(INFERENCE_SERVICE, metadata["namespace"], metadata["name"])
        while loop.time() < deadline:
            pods, _ = await self._cluster.list(POD)
            replicas, _ = await self._cluster.list(ENGINE_REPLICA)
            if not pods and not replicas:
                return
            for pod in pods:
                metadata = pod["metadata"]
                await self._cluster.delete(POD, metadata["namespace"], metadata["name"], grace_seconds=grace)
            await asyncio.sleep(0.05)
        logger.warning("replicas_did_not_stop_in_time")

    # What people see.

    async def _show(self) -> None:
        """Until cancelled: how things are, each service when it becomes ready, and once that all of them are."""
        while True:
            services = await self._views()
            self._display.show(services)
            complete = [service for service in services if service.complete]
            new = [service for service in complete if service.key not in self._announced]
            all_ready = len(complete) == len(services) and not self._ready
            if (new or all_ready) and await self._gateways.serve([service.model for service in complete]):
                self._announced |= {service.key for service in new}
                if all_ready:
                    self._ready = True
                    self._display.settle(services)
                    self._announce(services)
                else:
                    for service in new:
                        self._display.say(f"{service.key} is ready: model {service.model} at {self._settings.url}/v1")
            self._show_gateways()
            await asyncio.sleep(SHOW_S)

    async def _views(self) -> list[ServiceView]:
        services, _ = await self._cluster.list(INFERENCE_SERVICE)
        replicas, _ = await self._cluster.list(ENGINE_REPLICA)
        views = []
        for service in services:
            metadata = service["metadata"]
            own = [r for r in replicas if r["spec"]["service"] == metadata["name"]]
            own = [r for r in own if r["metadata"]["namespace"] == metadata["namespace"]]
            leases = self._operator.leases(f"{metadata['namespace']}/{metadata['name']}")
            views.append(service_view(service, own, leases))
        return views

    def _announce(self, services: Sequence[ServiceView]) -> None:
        say = self._display.say
        urls = [f"http://{self._gateways.host}:{port}/v1" for port in self._settings.gateway_ports()]
        say(f"\nReady after {time.monotonic() - self._begun:.1f} s at {' and '.join(urls)}")
        if services:
            say(f"Models: {', '.join(service.model for service in services)}. Try:\n")
            with_key = self._settings.api_keys is not None
            say(f"  {curl_line(self._settings.url, services[0].model, with_key=with_key)}\n")
        else:
            say("Serve a model: roundhouse apply -f FILE")
        say("`roundhouse get` shows what runs, `roundhouse logs NAME` what a replica writes. Ctrl-C stops everything.")

    def _show_gateways(self) -> None:
        for gateway in self._gateways.all:
            if gateway.trouble and not gateway.told:
                self._display.say(f"gateway on port {gateway.port} ended and is started again: {gateway.trouble}")
            gateway.told = bool(gateway.trouble)

    # Parts.

    def _kubelet(self, processes: ProcessHost) -> Kubelet:
        settings = KubeletSettings(
            home=self._home.root,
            env=self._env,
            gpus=self._settings.gpus,
            labels={"nvidia.com/gpu.product": self._settings.gpu_type} if self._settings.gpu_type else {},
            images=self._settings.images,
            backoff=self._settings.backoff,
        )
        return Kubelet(self._cluster, processes, settings, addresses=self._addresses, notice=self._display.say)

    def _control(self) -> Control:
        columns = {crd["spec"]["names"]["plural"]: crd_columns(crd) for crd in crds().values()}
        return Control(
            self._cluster,
            self._gateways,
            columns,
            self._home.logs,
            status=self._status,
            restart_operator=self._operator.restart,
        )

    def _status(self) -> Mapping[str, Any]:
        valkey = self._valkey.process
        return {
            "home": str(self._home.real),
            "pid": os.getpid(),
            "ready": self._ready,
            "url": f"{self._settings.url}/v1",
            "gateways": [
                {
                    "url": f"http://{self._gateways.host}:{gateway.port}/v1",
                    "admin": f"http://{self._gateways.host}:{gateway.admin_port}",
                    "pid": gateway.process.pid if gateway.process else 0,
                    "ready": gateway.ready,
                    "restarts": gateway.restarts,
                }
                for gateway in self._gateways.all
            ],
            "valkey": {"pid": valkey.pid if valkey else 0, "url": self._access.url},
            "operatorStarts": self._operator.starts,
        }


def operator_settings(settings: UpSettings, access: ValkeyAccess) -> Settings:
    """The operator of the local run: no GPU unless asked for, models in a folder of the user."""
    return Settings(
        installation="local",
        redis_url=access.url,
        redis_password=access.password,
        gateway_url=f"{settings.url}/v1",
        default_gpus=0,
        default_cache_path=str(settings.models),
    )


def _most_telling(errors: BaseExceptionGroup[LocalError]) -> LocalError:
    """A lost part says more than the starts that failed because of it."""
    known = [error for error in errors.exceptions if isinstance(error, LocalError)]
    return next((error for error in known if isinstance(error, StartError)), known[0])


async def _watch_warden(processes: ProcessHost) -> None:
    await processes.lost()
    raise StartError("the process that watches over all others was killed, and everything with it; start again")
