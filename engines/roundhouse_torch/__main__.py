"""``roundhouse-engine``: parse the command line, start the engine process, run the server until SIGTERM, take both down
together.
"""

import logging
import socket
import sys

from roundhouse_torch.engine.process import EngineProcess
from roundhouse_torch.errors import EngineError, EngineGone, SettingsError
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.registry import require_supported
from roundhouse_torch.settings import EngineSettings, parse_settings


def main() -> None:
    """Exit code 0 after a clean stop, 1 after a failure whose reason is the last line on stderr."""
    try:
        settings = parse_settings(sys.argv[1:])
        logging.basicConfig(
            level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
        )
        serve(settings)
    except EngineError as error:
        logging.shutdown()
        sys.stderr.write(f"roundhouse-engine: {error}\n")
        sys.exit(1)


def serve(settings: EngineSettings) -> None:
    """Returns after a clean stop; raises `EngineError` with the reason otherwise.

    What can be found wrong without torch is found before the engine is started: a bad folder or a busy port fails
    at once.
    """
    require_supported(ModelConfig.read(settings.model).architecture)
    listener = bind(settings.host, settings.port)
    engine = EngineProcess.start(settings)
    try:
        import uvloop

        from roundhouse_torch.server.run import run_server

        uvloop.run(run_server(settings, listener, engine.link))
    except EngineGone:
        raise EngineGone(engine.describe_exit()) from None
    finally:
        engine.stop()
        listener.close()


def bind(host: str, port: int) -> socket.socket:
    """Bound, not listening: connections are refused until the model answers. Raises `SettingsError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


if __name__ == "__main__":
    main()
