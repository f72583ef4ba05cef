"""LoRA adapters of one engine: held in host memory, moved to one of a few slots for use.

A slot belongs to an adapter while a request that uses it is in the scheduler (`acquire` … `release`); idle ones are
taken over, the least recently used first. What an adapter is called in the hash chain contains a digest of its
files, so that another adapter under the same name never meets the old one's KV.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch

from roundhouse_torch.models.adapter import Adapter, AdapterError, read_adapter
from roundhouse_torch.models.layers.lora import LoraSites


class Adapters:
    def __init__(self, sites: LoraSites, *, slots: int, max_rank: int) -> None:
        self._sites = sites
        self._slots = slots
        self._max_rank = max_rank
        self._loaded: dict[str, Adapter] = {}
        self._placed: OrderedDict[str, Adapter] = OrderedDict()
        self._users: Counter[str] = Counter()

    def load(self, name: str, folder: Path) -> None:
        """Raises `AdapterError`."""
        if self._users[name]:
            raise AdapterError(f"adapter {name!r} is still in use by running requests; try again when they are done")
        self._loaded[name] = read_adapter(name, folder, self._sites, self._max_rank)
        self._displace(name)

    def unload(self, name: str) -> None:
        """Requests that run with it go on."""
        self._loaded.pop(name, None)
        if not self._users[name]:
            self._displace(name)

    def identity(self, name: str) -> str:
        """Raises `AdapterError` when it is not loaded."""
        if name not in self._loaded:
            raise AdapterError(f"adapter {name!r} is not loaded")
        return self._loaded[name].identity

    def acquire(self, name: str) -> bool:
        """A slot for one more request. False: all belong to others now. Raises `AdapterError`."""
        self.identity(name)
        if name not in self._placed:
            if len(self._placed) >= self._slots:
                idle = next((other for other in self._placed if not self._users[other]), None)
                if idle is None:
                    return False
                self._displace(idle)
            self._placed[name] = self._loaded[name]
            self._sites.place(name, self._loaded[name].weights)
        self._placed.move_to_end(name)
        self._users[name] += 1
        return True

    def release(self, name: str) -> None:
        self._users[name] -= 1
        if not self._users[name] and name not in self._loaded:
            self._displace(name)

    def select(self, spans: Sequence[tuple[str, int]]) -> None:
        """The next batch: adapter (or empty) and number of tokens of each piece, in order."""
        rows: dict[str, list[int]] = {}
        total = 0
        for name, count in spans:
            if name:
                rows.setdefault(name, []).extend(range(total, total + count))
            total += count
        self._sites.batch.parts = [
            (name, None if len(found) == total else torch.tensor(found, device=self._sites.device))
            for name, found in rows.items()
        ]

    def _displace(self, name: str) -> None:
        if self._placed.pop(name, None) is not None:
            self._sites.remove(name)
