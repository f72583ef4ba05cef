"""``roundhouse-agent serve``: the tasks and how they end.

Four tasks share one `Replica`: the engine watch writes into it, the lease and the key publisher send it, the HTTP API
answers from it. If one of them fails, the process ends and the kubelet starts it again; the epoch is kept in the run
directory. SIGTERM comes last in a pod's life, when the engine has ended: ``stopped`` is published and that is all. If
the engine still lives, it gets a short grace first.
"""

import asyncio
import logging
import secrets
import signal
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from aiohttp import web
from roundhouse_engines.probe import Probe, ProbeTarget, load_probe
from roundhouse_kv.kv_store import KvLogWriter
from roundhouse_kv.lease_store import LeaseStore
from roundhouse_kv.names import Installation
from roundhouse_kv.redis_link import RedisLink

from roundhouse_agent.api import Api
from roundhouse_agent.engine_watch import EngineWatch
from roundhouse_agent.epoch import EpochKeeper
from roundhouse_agent.errors import BadSettings
from roundhouse_agent.key_publisher import KeyPublisher
from roundhouse_agent.lease_publisher import LeasePublisher
from roundhouse_agent.metrics import AgentCollector, agent_registry
from roundhouse_agent.replica import Engine, HungWatch, Identity, Replica
from roundhouse_agent.session import EngineSession
from roundhouse_agent.settings import ServeSettings

log = logging.getLogger(__name__)

STOP_GRACE_S = 5.0


async def serve(settings: ServeSettings) -> None:
    """Runs until SIGTERM or SIGINT. Raises `BadSettings` when the port is taken."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    keys = Installation(settings.installation).service(settings.namespace, settings.service)
    async with RedisLink(settings.redis) as link:
        replica = Replica(_identity(settings), now_ms)
        leases = LeasePublisher(replica, link, LeaseStore(link, keys), time.monotonic)
        publisher = KeyPublisher(replica, link, KvLogWriter(link, keys), time.monotonic)
        watch = _watch(settings, replica, publisher, leases)
        registry = agent_registry(AgentCollector(replica, watch, publisher, leases))
        api = Api(replica, watch, leases, registry, settings.drain_seconds, now_ms)
        async with asyncio.TaskGroup() as group:
            runner = await _listen(api.app(), settings)
            tasks = [group.create_task(task) for task in (watch.run(), leases.run(), publisher.run())]
            await stop.wait()
            await _last_words(replica, leases)
            for task in tasks:
                task.cancel()
            await runner.cleanup()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _identity(settings: ServeSettings) -> Identity:
    try:
        agent_version = version("roundhouse-serving")
    except PackageNotFoundError:
        agent_version = ""
    return Identity(settings.replica, settings.replica_uid, settings.pod_uid, secrets.randbits(63) or 1, agent_version)


def _watch(settings: ServeSettings, replica: Replica, publisher: KeyPublisher, leases: LeasePublisher) -> EngineWatch:
    target = ProbeTarget(
        settings.pod_ip, settings.engine_port, settings.engine_model, settings.kv_events, settings.kv_replay
    )
    factory = load_probe(settings.engine)

    def open_session(probe: Probe) -> EngineSession:
        return EngineSession(probe, settings.model_path, settings.run_dir, publisher.dirty)

    return EngineWatch(
        replica, EpochKeeper(settings.run_dir, now_ms), open_session, lambda: factory(target), publisher, leases,
        HungWatch(settings.hung_seconds), time.monotonic,
    )  # fmt: skip


async def _listen(app: web.Application, settings: ServeSettings) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.pod_ip, settings.port).start()
    except OSError as error:
        await runner.cleanup()
        raise BadSettings(f"the agent cannot listen on {settings.pod_ip}:{settings.port}: {error.strerror}") from error
    log.info("agent_listening", extra={"address": f"{settings.pod_ip}:{settings.port}"})
    return runner


async def _last_words(replica: Replica, leases: LeasePublisher) -> None:
    """Publish ``stopped`` once the engine is gone, or after the grace."""
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_GRACE_S):
            while replica.engine in (Engine.ANSWERS, Engine.SILENT):
                await replica.next_look()
    replica.stopped = True
    await leases.send(replica.lease())
    log.info("agent_stopped", extra={"engine": replica.engine.name.lower()})
