"""``roundhouse-sim``: start, serve until SIGTERM or SIGINT, drain, exit."""

import asyncio
import contextlib
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

from roundhouse_sim.engine import Engine
from roundhouse_sim.errors import BadSettings
from roundhouse_sim.inference import Inference
from roundhouse_sim.kv_events import EventLog
from roundhouse_sim.kv_sockets import KvSockets
from roundhouse_sim.metrics import Metrics, MetricsPage
from roundhouse_sim.model import dump_model
from roundhouse_sim.server import Connection
from roundhouse_sim.service import Service
from roundhouse_sim.settings import Settings, parse_settings

FLUSH_SECONDS: Final = 2.0

log = logging.getLogger("roundhouse_sim")


def main() -> int:
    try:
        settings = parse_settings()
    except BadSettings as error:
        return _fail(str(error), 2)
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if settings.dump_model:
        dump_model(Path(settings.dump_model))
        return 0
    time.sleep(settings.load_seconds)
    if settings.fail_start:
        return _fail(settings.fail_start, 1)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except (OSError, BadSettings) as error:
        return _fail(f"cannot start: {error}", 1)
    return 0


async def serve(settings: Settings) -> None:
    """Serve until told to stop. Raises `OSError` or `BadSettings` when an address cannot be bound."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    events = EventLog(settings.block_size, settings.kv_buffer_steps)
    sockets = KvSockets(events, settings.kv_events, settings.kv_replay)
    engine = Engine(settings, sockets.publish if settings.kv_events or settings.kv_replay else None, loop)
    metrics = Metrics()
    inference = Inference(settings, engine, metrics)
    service = Service(settings, engine, inference, MetricsPage(metrics, engine, settings))
    connections: set[Connection] = set()
    server = await loop.create_server(
        lambda: Connection(service.handle, connections, loop), settings.host, settings.port, backlog=1024
    )
    replay = asyncio.create_task(sockets.serve())
    port = server.sockets[0].getsockname()[1]
    log.info("listening host=%s port=%d models=%s", settings.host, port, ",".join(settings.served_names))
    try:
        await stop.wait()
        log.info("draining in_flight=%d timeout_s=%g", inference.in_flight, settings.shutdown_timeout)
        await inference.drain(settings.shutdown_timeout)
        server.close()
        await _flush(connections)
    finally:
        engine.stop()
        replay.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await replay
        sockets.close()
    log.info("stopped")


async def _flush(connections: set[Connection]) -> None:
    """Let the last bytes out, then close what is still open."""
    closing = [connection.closed for connection in connections]
    for connection in list(connections):
        connection.transport.close()
    if closing:
        await asyncio.wait(closing, timeout=FLUSH_SECONDS)
    for connection in list(connections):
        connection.transport.abort()


def _fail(message: str, status: int) -> int:
    sys.stderr.write(message + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
