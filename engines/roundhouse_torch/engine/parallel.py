"""Tensor parallelism: one process leads (scheduler, sampler, link to the server), the others follow.

The leader sends each follower, over a pipe, what it is about to compute: ids, positions and where their KV lies. All
run the same layers over their shards and meet in the collectives inside. Followers decide nothing and keep no state
but weights and KV.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from roundhouse_torch.errors import SettingsError
from roundhouse_torch.models.decoder import Decoder
from roundhouse_torch.models.layers.operations import AttentionBackend, AttentionPass, Span
from roundhouse_torch.models.layers.shard import Shard

MEET_TIMEOUT = timedelta(minutes=2)


def meet(shard: Shard, rendezvous: Path, device_type: str) -> None:
    """Returns when all processes of the group are there. Raises `SettingsError` when they do not come."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "nccl" if device_type == "cuda" else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(shard.rank)
    where = f"file://{rendezvous}"
    try:
        dist.init_process_group(
            backend, init_method=where, rank=shard.rank, world_size=shard.size, timeout=MEET_TIMEOUT
        )
    except (RuntimeError, ValueError) as error:
        raise SettingsError(f"the {shard.size} processes of --tensor-parallel-size did not meet: {error}") from error


class LedAttention:
    """An `AttentionBackend` that remembers the batch it prepared last, for `LeadingDecoder` to tell."""

    def __init__(self, local: AttentionBackend) -> None:
        self._local = local
        self.spans: list[Span] = []

    def prepare(self, spans: Sequence[Span]) -> AttentionPass:
        self.spans = [Span(span.start, span.count, list(span.blocks)) for span in spans]
        return self._local.prepare(spans)


@dataclass(frozen=True, slots=True)
class LeadingDecoder:
    """A `Decoder` that makes the followers compute along."""

    local: Decoder
    attention: LedAttention
    followers: Sequence[Connection]

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: AttentionPass) -> torch.Tensor:
        for follower in self.followers:
            follower.send((ids.tolist(), positions.tolist(), self.attention.spans))
        return self.local.forward(ids, positions, attend)

    def features(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.local.features(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        for follower in self.followers:
            follower.send(hidden.shape[0])
        dist.broadcast(hidden.contiguous(), 0)
        return self.local.logits(hidden)


@torch.inference_mode()
def follow(decoder: Decoder, attention: AttentionBackend, leader: Connection, device: torch.device) -> None:
    """Compute what the leader computes until it closes the pipe."""
    hidden = torch.empty(0, device=device)
    while True:
        try:
            order = leader.recv()
        except EOFError:
            return
        if isinstance(order, int):
            rows = hidden.new_empty(order, hidden.shape[1])
            dist.broadcast(rows, 0)
            decoder.logits(rows)
            continue
        ids, positions, spans = order
        attend = attention.prepare(spans)
        hidden = decoder.forward(torch.tensor(ids, device=device), torch.tensor(positions, device=device), attend)
