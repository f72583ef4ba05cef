"""Everything that can be set: parsed once in `main` from the command line; Redis credentials from the environment."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from roundhouse_gateway.errors import BadSettings


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take. Bytes and seconds."""

    head_bytes: int = 32 << 10
    """Request line and headers; more is 431."""
    headers: int = 100
    """Number of headers; more is 431."""
    body_bytes: int = 16 << 20
    """Request body; more is 413."""
    header_timeout_s: float = 10.0
    """From the first byte of a request, or from the connection, to the end of its head; else 408."""
    body_timeout_s: float = 120.0
    """From the end of the head to the end of the body; else 408."""
    idle_timeout_s: float = 75.0
    """A kept-alive connection without a request."""
    stall_timeout_s: float = 60.0
    """A client that takes nothing while an answer waits for it is cut."""
    client_buffer_bytes: int = 64 << 10
    """Unsent bytes for one client; above, its engine is not read."""
    held_bytes: int = 1 << 30
    """Request bodies in memory, of all clients together; more are 503 ``overloaded``."""
    in_flight: int = 10_000
    """Requests at once in this gateway; more are 503 ``overloaded``."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for engines. Seconds."""

    connect_s: float = 2.0
    """For a TCP connection; then the next replica."""
    first_event_s: float = 120.0
    """For a stream's first event, queueing and prefill included; then the next replica."""
    event_s: float = 60.0
    """Between two events of a stream; then it ends with an error event."""
    total_s: float = 900.0
    """For the whole answer of a request that does not stream; then 504."""
    upstream_idle_s: float = 4.0
    """A kept connection to an engine is closed after this; engines on uvicorn close theirs after 5 s."""
    attempts: int = 3
    """Replicas tried for one request."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One gateway process."""

    host: str = "0.0.0.0"
    port: int = 8080
    admin_host: str = ""
    """Empty: as ``host``."""
    admin_port: int = 0
    """0: ``port`` + 1."""
    installation: str = "local"
    redis_url: str = "redis://127.0.0.1:6379/0"
    redis_username: str | None = None
    redis_password: str | None = field(default=None, repr=False)
    catalogue_file: Path | None = None
    """Keeps the last catalogue, so that a gateway that starts while Redis is down still serves."""
    api_keys: Path | None = None
    """Folder of hashed API keys (see `api_keys`); None: everyone is served."""
    drain_timeout_s: float = 60.0
    """After SIGTERM: how long streams may go on before they end with an error event."""
    explain_headers: bool = True
    """Whether answers carry ``x-roundhouse-*``."""
    log_level: str = "INFO"
    limits: Limits = Limits()
    patience: Patience = Patience()

    @property
    def admin_address(self) -> tuple[str, int]:
        return self.admin_host or self.host, self.admin_port or (self.port + 1 if self.port else 0)


_HELP = {
    "host": "address to serve /v1 on",
    "port": "port to serve /v1 on; 0 = a free one",
    "admin_host": "address of health, metrics and admin API (default: as --host)",
    "admin_port": "port of health, metrics and admin API (default: --port + 1)",
    "installation": "Roundhouse installation, the name space in Redis",
    "redis_url": "redis://, rediss:// or unix://; credentials: RH_REDIS_USERNAME and RH_REDIS_PASSWORD",
    "catalogue_file": "file that keeps the last catalogue",
    "api_keys": "folder of hashed API keys, as `roundhouse keys create` makes them; without it everyone is served",
    "drain_timeout_s": "after SIGTERM, seconds until streams are ended",
    "log_level": "DEBUG, INFO, WARNING or ERROR",
}


def parse_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Raises `BadSettings`; argparse exits on unknown options and for ``--help``."""
    given = vars(_parser().parse_args(argv))
    limits = _built(Limits, given)
    patience = _built(Patience, given)
    settings = Settings(
        **{name: given[name] for name in _HELP},
        explain_headers=given["explain_headers"],
        redis_username=environ.get("RH_REDIS_USERNAME") or None,
        redis_password=environ.get("RH_REDIS_PASSWORD") or None,
        limits=limits,
        patience=patience,
    )
    _check(settings)
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roundhouse-gateway", description="OpenAI-compatible endpoint over engine replicas."
    )
    for name, text in _HELP.items():
        default = getattr(Settings(), name)
        kind = Path if name in ("catalogue_file", "api_keys") else type(default)
        parser.add_argument(_option(name), dest=name, type=kind, default=default, help=text)
    parser.add_argument(
        "--explain-headers", action=argparse.BooleanOptionalAction, default=True, help="send x-roundhouse-* headers"
    )
    for group, cls in (("limits for clients", Limits), ("patience with engines", Patience)):
        section = parser.add_argument_group(group)
        for f in fields(cls):
            section.add_argument(_option(f.name), dest=f.name, type=type(f.default), default=f.default)
    return parser


def _option(name: str) -> str:
    """``drain_timeout_s`` → ``--drain-timeout``; the unit is in the documentation, not in the option."""
    return "--" + name.removesuffix("_s").replace("_", "-")


def _built(cls: type[Any], given: Mapping[str, Any]) -> Any:
    return cls(**{f.name: given[f.name] for f in fields(cls)})


def _check(settings: Settings) -> None:
    for name, port in (("--port", settings.port), ("--admin-port", settings.admin_port)):
        if not 0 <= port <= 65535:
            raise BadSettings(f"{name} {port} is not a port")
    if settings.port and settings.admin_address[1] == settings.port:
        raise BadSettings("--admin-port must differ from --port")
    if not settings.installation:
        raise BadSettings("--installation must not be empty")
    if not settings.redis_url.startswith(("redis://", "rediss://", "unix://")):
        raise BadSettings("--redis-url must begin with redis://, rediss:// or unix://")
    if settings.log_level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise BadSettings("--log-level must be DEBUG, INFO, WARNING or ERROR")
    for group in (settings.limits, settings.patience):
        for f in fields(group):
            if getattr(group, f.name) <= 0:
                raise BadSettings(f"{_option(f.name)} must be greater than 0")
    if settings.drain_timeout_s < 0:
        raise BadSettings("--drain-timeout must not be negative")
