"""LoRA adapters of one engine: read from PEFT's folders, held in host memory, moved to one of a few slots for use.

A slot belongs to an adapter while a request that uses it is in the scheduler (`acquire` … `release`); idle ones are
taken over, the least recently used first. What an adapter is called in the hash chain contains a digest of its
files, so that another adapter under the same name never meets the old one's KV.
"""

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from roundhouse_torch.layers.lora import LoraSites

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "alpha_pattern": ({}, None),
}
_PREFIX = "base_model.model."

Pairs = dict[str, tuple[torch.Tensor, torch.Tensor]]


class AdapterError(ValueError):
    """The client's fault: what is wrong with the adapter, or why it cannot be done now."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """``identity`` is its name and the digest of its files."""

    identity: str
    weights: Pairs


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
        """A slot for one more request. False: all belong to others now."""
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


def read_adapter(name: str, folder: Path, sites: LoraSites, max_rank: int) -> Adapter:
    """Raises `AdapterError`, naming what does not fit and what would."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        data = (folder / "adapter_model.safetensors").read_bytes()
        tensors = load(data)
    except Exception as error:  # safetensors raises nothing narrower for broken files
        raise AdapterError(
            f"{folder} has no readable adapter_config.json and adapter_model.safetensors: {error}"
        ) from error
    weights = _pairs(config, tensors, sites, max_rank)
    digest = sha256(data + json.dumps(config, sort_keys=True).encode()).hexdigest()
    return Adapter(f"{name}:{digest}", weights)


def _pairs(config: Mapping[str, Any], tensors: dict[str, torch.Tensor], sites: LoraSites, max_rank: int) -> Pairs:
    for field, neutral in _UNSUPPORTED.items():
        if config.get(field) not in neutral:
            raise AdapterError(f"{field}={config[field]!r} in adapter_config.json is not supported")
    pairs: Pairs = {}
    for key in sorted(tensors):
        module, kind, _ = key.removeprefix(_PREFIX).rpartition(".lora_A.")
        if not kind:
            if ".lora_B." not in key:
                raise AdapterError(f"tensor {key!r} is no lora_A or lora_B weight; only those are supported")
            continue
        a, b = tensors[key], tensors.get(key.replace(".lora_A.", ".lora_B."))
        site, start, stop = sites.sites.get(module, (None, 0, 0))
        if site is None:
            raise AdapterError(f"this model has no adaptable projection {module!r}")
        rank, inputs = a.shape
        if b is None or inputs != site.inputs or tuple(b.shape) != (stop - start, rank):
            raise AdapterError(f"lora_A and lora_B of {module!r} do not fit this model")
        if rank > max_rank:
            raise AdapterError(f"rank {rank} is above --max-lora-rank {max_rank}")
        alpha = float(config.get("lora_alpha") or rank)
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        pairs[module] = (a.t().contiguous(), b.t().float().mul(scale).contiguous())
    if not pairs:
        raise AdapterError("the adapter has no weights")
    return pairs
