"""Tensor parallelism: each process has a slice of every matrix and of the KV heads.

Outward projections (queries, keys, values, gate, up) are cut by outputs, inward ones (attention output, down) by
inputs, so that a layer needs two sums over the processes and nothing else; the output layer is cut by vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from roundhouse_torch.models.layers.linear import Projection


@dataclass(frozen=True, slots=True)
class Shard:
    """Process ``rank`` of ``size``."""

    rank: int = 0
    size: int = 1

    def part(self, whole: int) -> slice:
        """This process's share, in order of rank; the last may have less."""
        step = -(-whole // self.size)
        return slice(self.rank * step, min(whole, (self.rank + 1) * step))


ALONE = Shard()


@dataclass(frozen=True, slots=True)
class SummedInputs:
    """``local`` knows a slice of the inputs."""

    local: Projection
    shard: Shard

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.local(x)
        dist.all_reduce(out)
        return out


@dataclass(frozen=True, slots=True)
class GatheredOutputs:
    """``local`` gives a slice of ``outputs``."""

    local: Projection
    shard: Shard
    outputs: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        mine = self.local(x)
        width = -(-self.outputs // self.shard.size)
        padded = torch.nn.functional.pad(mine, (0, width - mine.shape[-1])).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.shard.size)]
        dist.all_gather(parts, padded)
        return torch.cat(parts, -1)[:, : self.outputs]


def least(blocks: int, device: torch.device) -> int:
    """The smallest of all processes' numbers."""
    number = torch.tensor([blocks], device=device)
    dist.all_reduce(number, dist.ReduceOp.MIN)
    return int(number.item())
