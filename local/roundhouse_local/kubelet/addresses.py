"""An own loopback address for every pod.

Linux answers on all of 127.0.0.0/8, so each pod can keep its ports (8000, 9090) on an address of its own. Two runs on
one machine start at different places, and an address is taken only when the pod's ports are free on it.
"""

import errno
import random
import socket
from collections.abc import Iterable

from roundhouse_local.errors import StartError

_TRIES = 64
_FIRST, _BLOCKS = 16, 192
"""Second byte of the addresses: 127.16 to 127.207, clear of 127.0.x that people use by hand."""


class AddressPool:
    """Hands out addresses round-robin, so that one is not used again soon after its pod is gone."""

    def __init__(self, block: int | None = None) -> None:
        block = random.randrange(_BLOCKS) if block is None else block
        self._prefix = f"127.{_FIRST + block % _BLOCKS}"
        self._next = 0
        self._taken: set[str] = set()

    def take(self, ports: Iterable[int]) -> str:
        """An address where all of ``ports`` can be bound. Raises `StartError` naming the port that is nowhere free."""
        wanted = list(ports)
        busy: int | None = None
        for _ in range(_TRIES):
            address = self._candidate()
            busy = busy_port(address, wanted)
            if busy is None and address not in self._taken:
                self._taken.add(address)
                return address
        raise StartError(
            f"port {busy} is taken on every loopback address: some program listens on 0.0.0.0:{busy}; stop it"
        )

    def release(self, address: str) -> None:
        self._taken.discard(address)

    def _candidate(self) -> str:
        self._next = self._next % 65_000 + 1
        high, low = divmod(self._next, 250)
        return f"{self._prefix}.{high}.{low + 1}"


def busy_port(address: str, ports: Iterable[int]) -> int | None:
    """The first port that somebody listens on already. Raises `StartError` when the address cannot be bound at all."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return port
                raise StartError(f"{address} cannot be bound ({error.strerror}): the local run needs Linux") from None
    return None
