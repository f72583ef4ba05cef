"""Puts one gateway together, runs it until it is told to stop, and takes it apart in order.

Start: sockets are bound first, so that a busy port is the first thing said; then the feed follows Redis, the admin
thread answers, and the data plane listens as soon as it knows the replicas. Stop (SIGTERM or SIGINT): not ready, no new
connections, streams drain, the books' last entries leave, then everything else. A second signal ends the drain at once.
"""

import asyncio
import gc
import logging
import resource
import secrets
import signal
import socket
import time
from contextlib import suppress
from random import Random

from roundhouse_kv.demand_store import DemandStore
from roundhouse_kv.gateway_feed import GatewayFeed
from roundhouse_kv.names import Installation
from roundhouse_kv.records import GatewayBeat
from roundhouse_kv.redis_config import RedisConfig
from roundhouse_kv.redis_link import RedisLink

from roundhouse_gateway import exchange
from roundhouse_gateway.admin import AdminServer, LoopDoor, build_app
from roundhouse_gateway.admin_views import catalogue_json, feed_gauges
from roundhouse_gateway.api_keys import ApiKeys
from roundhouse_gateway.beats import Beats
from roundhouse_gateway.data_plane import DataPlane
from roundhouse_gateway.errors import BadSettings
from roundhouse_gateway.fleet import Fleet
from roundhouse_gateway.logs import count_unreadable
from roundhouse_gateway.settings import Settings

log = logging.getLogger(__name__)

FIRST_LOOK_S = 3.0
FLUSH_S = 1.0
SENT_S = 0.05
YOUNG_OBJECTS = 50_000


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `BadSettings` when an address cannot be bound."""
    _allow_many_files()
    clock = time.monotonic
    keys = ApiKeys(settings.api_keys) if settings.api_keys else None
    public = bind(settings.host, settings.port)
    admin = bind(*settings.admin_address)
    installation = Installation(settings.installation)
    incarnation = secrets.randbits(64) | 1
    stop = _stop_signals()
    config = RedisConfig(settings.redis_url, settings.redis_username, settings.redis_password)
    async with RedisLink(config) as link:
        feed = GatewayFeed(link, installation, incarnation, catalogue_file=settings.catalogue_file, clock=clock)
        fleet = Fleet(feed, settings.patience, clock)
        plane = DataPlane(settings, fleet, incarnation, clock=clock, wall_clock=time.time, random=Random(), keys=keys)
        count_unreadable(plane.metrics.wire_errors)
        beat = GatewayBeat(incarnation=incarnation, admin=_shown(admin), started_ms=round(time.time() * 1000))
        beats = Beats(DemandStore(link, installation), beat, fleet, clock)
        app = build_app(
            plane,
            LoopDoor(asyncio.get_running_loop()),
            catalogue=lambda: catalogue_json(feed.catalogue, feed.catalogue_age),
            gauges=lambda: feed_gauges(feed, link, beats.missed),
        )
        server = AdminServer(app, admin)
        async with asyncio.TaskGroup() as tasks:
            followers = [
                tasks.create_task(feed.run(), name="feed"),
                tasks.create_task(plane.run(), name="data plane"),
                tasks.create_task(beats.run(), name="beats"),
            ]
            if keys is not None:
                followers.append(tasks.create_task(keys.run(), name="api keys"))
            server.start()
            await _first_look(feed)
            plane.listen(public)
            _spare_the_collector()
            log.info(
                "listening address=%s admin=%s gateway=%016x compiled=%s",
                _shown(public), _shown(admin), incarnation, not str(exchange.__file__).endswith(".py"),
            )  # fmt: skip
            try:
                await stop.wait()
                stop.clear()
                await _drain(plane, stop, settings.drain_timeout_s)
                await _books_sent(feed, clock() + FLUSH_S)
            finally:
                for follower in followers:
                    follower.cancel()
        server.stop()
        log.info("stopped gateway=%016x", incarnation)


async def _first_look(feed: GatewayFeed) -> None:
    """Who connects meanwhile waits a moment instead of hearing that there is no replica; without Redis not for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(FIRST_LOOK_S):
            await feed.looked.wait()


def _spare_the_collector() -> None:
    """Requests leave no cycles behind, only the journal's ten thousand records, which the default thresholds would look
    through again and again (a tenth of all CPU). What stands now stays for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


def bind(host: str, port: int) -> socket.socket:
    """Raises `BadSettings` naming the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise BadSettings(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


async def _drain(plane: DataPlane, stop: asyncio.Event, timeout_s: float) -> None:
    draining = asyncio.create_task(plane.drain(timeout_s))
    again = asyncio.create_task(stop.wait())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if not draining.done():
        draining.cancel()
        with suppress(asyncio.CancelledError):
            await draining
        await plane.drain(0.0)
    else:
        draining.result()


async def _books_sent(feed: GatewayFeed, deadline: float) -> None:
    """Wait until the last bookings' ends have left, so that the other gateways need not wait for our silence."""
    while time.monotonic() < deadline:
        if all(view.books.outbox_due(time.monotonic()) is None for view in feed.views.values()):
            break
        await asyncio.sleep(0.005)
    await asyncio.sleep(SENT_S)


def _stop_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _allow_many_files() -> None:
    """Two descriptors a request: take what the hard limit gives."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _shown(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
