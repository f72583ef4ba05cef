"""From a checkpoint to layers on a device: the only place that knows how weights are laid out in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from roundhouse_torch.errors import BrokenModel
from roundhouse_torch.kernels.plain import TorchOperations
from roundhouse_torch.models.checkpoint import Checkpoint
from roundhouse_torch.models.layers.linear import Linear, Linear8, PackedLinear, Projection
from roundhouse_torch.models.layers.lora import LoraSites
from roundhouse_torch.models.layers.norm import RMSNorm
from roundhouse_torch.models.layers.operations import Operations
from roundhouse_torch.models.layers.shard import ALONE, GatheredOutputs, Shard, SummedInputs
from roundhouse_torch.models.quantised import SCALES, Scheme, widened

Parts = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Weights:
    """``device`` and ``dtype`` are what the model computes with, whatever the checkpoint holds; ``shard``: which part
    of it this process computes; ``adapted`` collects the projections that adapters may change.
    """

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    scheme: Scheme | None = None
    operations: Operations = field(default_factory=TorchOperations)
    shard: Shard = ALONE
    adapted: LoraSites | None = None

    def vector(self, name: str, size: int) -> torch.Tensor:
        return self.checkpoint.get(name, (size,)).to(device=self.device, dtype=self.dtype, copy=True)

    def norm(self, prefix: str, size: int, eps: float) -> RMSNorm:
        return RMSNorm(self.vector(f"{prefix}.weight", size), eps, self.operations)

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """As stored. Shares memory with the file when device and type are the file's."""
        return self.checkpoint.get(name, (rows, columns)).to(device=self.device, dtype=self.dtype)

    def head(self, prefix: str, outputs: int, inputs: int) -> Projection:
        """The output layer; with several shards each computes its part of the vocabulary."""
        rows = self.shard.part(outputs)
        stored = self._wide(f"{prefix}", outputs, inputs)[rows]
        local = self._multiplier(stored.to(self.device, self.dtype), None)
        return local if self.shard.size == 1 else GatheredOutputs(local, self.shard, outputs)

    def linear(self, prefix: str, parts: Parts, inputs: int, *, bias: bool = False, inward: bool = False) -> Projection:
        """One projection out of ``<prefix>.<name>.weight`` for each (name, outputs) of ``parts``, side by side.

        With several shards each has a slice of the outputs, or of the inputs if ``inward``; then results are summed.
        """
        eight = self._eight_bits(prefix, parts, inputs) if self.operations.keeps_8_bits else None
        offsets = self._bias(prefix, parts, inward) if bias else None
        if eight is not None:
            linear: Projection = Linear8(*eight, offsets, self.operations)
        else:
            slices = [self._slice(self._wide(f"{prefix}.{name}", size, inputs), inward) for name, size in parts]
            linear = self._multiplier(torch.cat([part.to(self.device, self.dtype) for part in slices]), offsets)
        if inward and self.shard.size > 1:
            linear = SummedInputs(linear, self.shard)
        return linear if self.adapted is None else self.adapted.wrap(prefix, parts, inputs, linear)

    def _multiplier(self, stored: torch.Tensor, bias: torch.Tensor | None) -> Projection:
        if PackedLinear.pays(self.device, self.dtype, stored.shape[0]):
            return PackedLinear(stored, bias)
        return Linear(stored.t().contiguous(), bias)

    def _slice(self, stored: torch.Tensor, inward: bool) -> torch.Tensor:
        return stored[:, self.shard.part(stored.shape[1])] if inward else stored[self.shard.part(stored.shape[0])]

    def _bias(self, prefix: str, parts: Parts, inward: bool) -> torch.Tensor:
        """Of a sum, the first shard has the whole bias and the others zeros."""
        stored = [self.checkpoint.get(f"{prefix}.{name}.bias", (size,)) for name, size in parts]
        if inward:
            stored = [bias if self.shard.rank == 0 else torch.zeros_like(bias) for bias in stored]
        else:
            stored = [bias[self.shard.part(bias.shape[0])] for bias in stored]
        return torch.cat(stored).to(self.device, self.dtype)

    def _wide(self, prefix: str, outputs: int, inputs: int) -> torch.Tensor:
        name = f"{prefix}.weight"
        if not self.checkpoint.is_8_bit(name):
            return self.checkpoint.get(name, (outputs, inputs))
        return widened(self.checkpoint.get_8_bit(name, (outputs, inputs)), self._scale(prefix), self.scheme)

    def _scale(self, prefix: str) -> torch.Tensor:
        for suffix in SCALES:
            if f"{prefix}.{suffix}" in self.checkpoint:
                return self.checkpoint.any(f"{prefix}.{suffix}")
        raise BrokenModel(f"tensor {prefix}.weight has 8 bits but no {' or '.join(SCALES)} is with it")

    def _eight_bits(self, prefix: str, parts: Parts, inputs: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Weights and one scale per output, when all ``parts`` are stored so and nothing is sharded."""
        names = [f"{prefix}.{name}" for name, _ in parts]
        if self.shard.size > 1 or not all(self.checkpoint.is_8_bit(f"{name}.weight") for name in names):
            return None
        scales = [self._scale(name).float().flatten() for name in names]
        if any(scale.numel() not in (1, size) for scale, (_, size) in zip(scales, parts, strict=True)):
            return None
        weights = [
            self.checkpoint.get_8_bit(f"{name}.weight", (size, inputs))
            for name, (_, size) in zip(names, parts, strict=True)
        ]
        whole = torch.cat([scale.expand(size) for scale, (_, size) in zip(scales, parts, strict=True)])
        return torch.cat(weights).to(self.device), whole.to(self.device)
