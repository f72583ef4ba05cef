"""``roundhouse-gateway``: parse settings, run on uvloop."""

import asyncio
import os
import sys

import uvloop

from roundhouse_gateway import logs
from roundhouse_gateway.app import run
from roundhouse_gateway.errors import BadSettings
from roundhouse_gateway.settings import parse_settings


def main() -> int:
    try:
        settings = parse_settings(sys.argv[1:], os.environ)
        logs.configure(settings.log_level)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(settings))
    except BadSettings as error:
        sys.stderr.write(f"roundhouse-gateway: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
