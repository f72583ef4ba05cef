"""Where Redis is, and how long it is waited for."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """Where Redis is. ``url`` is ``redis://``, ``rediss://`` or ``unix://``, without credentials.

    ``timeout_s``: deadline of one call, connect included. ``beat_s``: period of the heartbeat. ``echo_s``: an echo
    older than this means unhealthy. ``settle_s``: how long after a reconnect or a new server nothing is judged stale.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout_s: float = 1.0
    beat_s: float = 0.25
    echo_s: float = 1.0
    settle_s: float = 10.0
