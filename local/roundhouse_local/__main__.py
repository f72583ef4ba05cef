"""`roundhouse`: run, look at and change a local installation."""

import argparse
import os
import sys
from typing import Any

from roundhouse_local.cli.parser import make_parser
from roundhouse_local.errors import LocalError, UserError


def main() -> int:
    options = make_parser().parse_args()
    try:
        return _run(options)
    except UserError as error:
        return _fail(error, 2)
    except LocalError as error:
        return _fail(error, 1)
    except BrokenPipeError:  # The reader of our output has gone, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    """Modules are imported when their command is used, so that short commands start fast."""
    match options.command:
        case "up":
            from roundhouse_local.cli.up import run_up

            return run_up(options)
        case "render-crds":
            from roundhouse_operator.api.crds import write_crds

            for path in write_crds(options.folder):
                print(path)
            return 0
        case "keys":
            from roundhouse_local.cli.keys import run_keys

            return run_keys(options)
        case "logs":
            from roundhouse_local.cli.logs import run_logs

            return run_logs(options, _asker(options))
        case command:
            from roundhouse_local.cli import objects

            return getattr(objects, f"run_{command.replace('-', '_')}")(options, _asker(options))  # type: ignore[no-any-return]


def _asker(options: argparse.Namespace) -> Any:
    from functools import partial

    from roundhouse_local.supervisor.home import control_socket
    from roundhouse_local.supervisor.requests import ask
    from roundhouse_local.supervisor.settings import home_folder

    home = home_folder(options.home)
    return partial(ask, control_socket(home), home)


def _fail(error: Exception, code: int) -> int:
    print(f"roundhouse: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
