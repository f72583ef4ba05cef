"""Low-rank adapters: ``y += (x·A)·B`` for the rows of a batch whose request asked for it, several in one batch.

The model is built once with an `AdaptedLinear` around each projection; a batch without adapters passes through with one
look at an empty list. Weights of a loaded adapter wait in host memory; a slot holds those on the device.
"""

from collections.abc import Mapping, Sequence

import torch

from roundhouse_torch.models.layers.linear import Projection

Piece = tuple[torch.Tensor, torch.Tensor, int, int]
"""A, B with the scale in it, and the columns of the output that they change."""


class LoraBatch:
    """``parts``: (adapter, its rows) of the batch in the making; rows None: all of it."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[tuple[str, torch.Tensor | None]] = []


class AdaptedLinear:
    """``pieces`` by adapter, of those that have a slot and change this projection."""

    __slots__ = ("batch", "inputs", "linear", "pieces")

    def __init__(self, linear: Projection, inputs: int, batch: LoraBatch) -> None:
        self.linear = linear
        self.inputs = inputs
        self.batch = batch
        self.pieces: dict[str, list[Piece]] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        for adapter, rows in self.batch.parts:
            for a, b, start, stop in self.pieces.get(adapter, ()):
                change = torch.mm(torch.mm(x if rows is None else x[rows], a), b)
                if rows is None:
                    y[:, start:stop] += change
                else:
                    y[:, start:stop].index_add_(0, rows, change)
        return y


class LoraSites:
    """Every projection that an adapter may change, by its name in the checkpoint."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self.batch = LoraBatch()
        self.sites: dict[str, tuple[AdaptedLinear, int, int]] = {}

    def wrap(self, prefix: str, parts: Sequence[tuple[str, int]], inputs: int, linear: Projection) -> Projection:
        """``parts``: (name, outputs) side by side, as given to `Weights.linear`."""
        adapted = AdaptedLinear(linear, inputs, self.batch)
        start = 0
        for name, size in parts:
            self.sites[f"{prefix}.{name}"] = (adapted, start, start + size)
            start += size
        return adapted

    def place(self, adapter: str, weights: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Give ``adapter`` a slot: A (inputs × rank) and B (rank × outputs) by projection."""
        for name, (a, b) in weights.items():
            site, start, stop = self.sites[name]
            piece = (a.to(self.device, self.dtype), b.to(self.device, self.dtype), start, stop)
            site.pieces.setdefault(adapter, []).append(piece)

    def remove(self, adapter: str) -> None:
        for site, _, _ in self.sites.values():
            site.pieces.pop(adapter, None)
