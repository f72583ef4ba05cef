"""``roundhouse-engine``: parse the command line, start the engine, serve until SIGTERM."""

import logging
import sys

from roundhouse_torch.errors import EngineError
from roundhouse_torch.settings import parse_settings
from roundhouse_torch.supervisor import serve


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


if __name__ == "__main__":
    main()
