"""``roundhouse-agent serve`` and ``roundhouse-agent fetch``."""

import asyncio
import logging
import os
import signal
import sys
from types import FrameType

from roundhouse_kv.log_lines import LineFormatter

from roundhouse_agent.errors import AgentError
from roundhouse_agent.settings import FetchSettings, ServeSettings

log = logging.getLogger("roundhouse_agent")


def main() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for library in ("httpx", "httpx2", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
    commands = {"serve": run_serve, "fetch": run_fetch}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(f"usage: roundhouse-agent {'|'.join(commands)}")
    commands[sys.argv[1]]()


def run_serve() -> None:
    from roundhouse_agent.serve import serve

    try:
        asyncio.run(serve(ServeSettings.from_env(os.environ)))
    except AgentError as error:
        sys.exit(str(error))


def run_fetch() -> None:
    """Exit code 1 and one last line on stderr, which becomes the container's termination message."""
    from roundhouse_agent.models.fetch import fetch

    signal.signal(signal.SIGTERM, _leave)
    try:
        settings = FetchSettings.from_env(os.environ)
        if settings is None:
            log.info("model_not_needed")
            return
        fetch(settings)
    except AgentError as error:
        sys.exit(" ".join(str(error).split()))
    except OSError as error:
        sys.exit(f"model cache: {error.strerror or error} ({error.filename}): check its volume and permissions")


def _leave(signum: int, frame: FrameType | None) -> None:
    """At once, downloads in other threads included: the cache is made to survive that."""
    os._exit(128 + signum)


if __name__ == "__main__":
    main()
