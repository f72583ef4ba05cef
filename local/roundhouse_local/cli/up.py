"""`roundhouse up`."""

import argparse
import asyncio
import logging
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from roundhouse_kv.log_lines import LineFormatter
from roundhouse_operator.cluster import Invalid

from roundhouse_local.errors import UserError
from roundhouse_local.manifests import Manifest, load_manifests
from roundhouse_local.supervisor.display import open_display
from roundhouse_local.supervisor.home import Home, locked_home
from roundhouse_local.supervisor.settings import UpSettings, cache_folder, home_folder
from roundhouse_local.supervisor.supervisor import Supervisor, make_validator


def run_up(options: argparse.Namespace) -> int:
    """Returns the exit code; raises `UserError` or `StartError`."""
    settings = up_settings(options)
    manifests = load_manifests(options.filename, options.namespace)
    check_manifests(manifests)
    with locked_home(settings.home) as home:
        _log_to(home, verbose=options.verbose)
        return asyncio.run(_run(settings, home, manifests))


def up_settings(options: argparse.Namespace) -> UpSettings:
    """Raises `UserError`."""
    for flag, value, least in (
        ("--gateways", options.gateways, 1),
        ("--gpus", options.gpus, 0),
        ("--port", options.port, 1),
    ):
        if value < least:
            raise UserError(f"{flag} {value}: must be at least {least}")
    if options.stop_timeout < 0:
        raise UserError(f"--stop-timeout {options.stop_timeout:g}: must not be negative")
    if not math.isfinite(options.stop_timeout):
        raise UserError(f"--stop-timeout {options.stop_timeout:g}: must be a number of seconds")
    if options.api_keys is not None and not options.api_keys.is_dir():
        raise UserError(
            f"--api-keys {options.api_keys}: no such folder; `roundhouse keys create NAME --dir DIR` makes it"
        )
    return UpSettings(
        home=home_folder(options.home),
        models=(options.models or cache_folder() / "models").absolute(),
        host=options.host,
        port=options.port,
        gateways=options.gateways,
        api_keys=options.api_keys and options.api_keys.absolute(),
        gpus=options.gpus,
        gpu_type=options.gpu_type,
        stop_s=options.stop_timeout,
    )


def check_manifests(manifests: Sequence[Manifest]) -> None:
    """All of them before anything starts. Raises `UserError` with the file and the field."""
    validator = make_validator()
    for manifest in manifests:
        try:
            validator.check(manifest.kind, manifest.obj, None)
        except Invalid as error:
            raise UserError(f"{manifest.source}: {error}") from None


async def _run(settings: UpSettings, home: Home, manifests: Sequence[Manifest]) -> int:
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():  # The warden kills everything when our socket to it closes.
            sys.stderr.write("Killed.\n")
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    display = open_display(Console())
    try:
        await Supervisor(settings, home, display).run(manifests, stop)
    finally:
        display.close()
    return 0


def _log_to(home: Home, *, verbose: bool) -> None:
    handlers: list[logging.Handler] = [logging.FileHandler(Path(home.logs) / "supervisor.log")]
    if verbose:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=handlers)
