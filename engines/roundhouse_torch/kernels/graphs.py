"""CUDA graphs for decode steps: the launches of a whole forward pass, recorded once per batch size and replayed.

A batch is padded to the next recorded size by sequences that write nothing. Everything a recorded launch reads lies in
buffers of fixed addresses, which are filled before each replay. Other batches run eagerly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from roundhouse_torch.kernels.operations import TritonAttention, TritonPass, batch_arrays
from roundhouse_torch.models.decoder import Decoder
from roundhouse_torch.models.layers.operations import AttentionPass, Span
from roundhouse_torch.models.layers.rope import Rotation

Capture = Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]]
"""Runs a function and gives one that does the same work again on the same memory."""


def cuda_graph(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """See `Capture`: warm up beside the current stream, then record."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


def sizes_up_to(most: int) -> list[int]:
    """1, 2, 4, then steps of 8."""
    return [size for size in (1, 2, 4, *range(8, most, 8)) if size < most] + [most]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Buffers of one batch size, and what to run over them."""

    ids: torch.Tensor
    positions: torch.Tensor
    attend: TritonPass
    replay: Callable[[], torch.Tensor]


class GraphedDecoder:
    """A `Decoder` around another; ``prepare`` of its attention must come from `GraphedAttention`."""

    def __init__(
        self, decoder: Decoder, attention: TritonAttention, sizes: Sequence[int], width: int, capture: Capture
    ) -> None:
        """``width``: blocks of the longest context. The largest size is recorded first."""
        self._decoder = decoder
        self._attention = attention
        self._width = width
        self._capture = capture
        self._recorded = {size: self._record(size) for size in sorted(sizes, reverse=True)}

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: AttentionPass) -> torch.Tensor:
        spans = getattr(attend, "spans", None)
        size = next((size for size in sorted(self._recorded) if spans and size >= len(spans)), None)
        if spans is None or size is None:
            return self._decoder.forward(ids, positions, attend)
        recorded, count = self._recorded[size], len(spans)
        arrays = batch_arrays(spans, self._attention.storage.block_size, self._width, size)
        recorded.ids[:count].copy_(ids)
        recorded.positions[:count].copy_(positions)
        for target, source in (
            (recorded.attend.slots, arrays.slots),
            (recorded.attend.tables, arrays.tables),
            (recorded.attend.lengths, arrays.lengths),
        ):
            target.copy_(torch.from_numpy(source), non_blocking=True)
        return recorded.replay()[:count]

    def features(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._decoder.features(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._decoder.logits(hidden)

    def _record(self, size: int) -> Recorded:
        device = self._attention.storage.device
        ids = torch.zeros(size, dtype=torch.long, device=device)
        positions = torch.zeros(size, dtype=torch.long, device=device)
        attend = self._attention.over(
            batch_arrays((), self._attention.storage.block_size, self._width, size), decode=True
        )
        replay = self._capture(lambda: self._decoder.forward(ids, positions, attend))
        return Recorded(ids, positions, attend, replay)


class GraphedAttention:
    """Passes of single tokens carry their spans, for `GraphedDecoder` to run over its own buffers."""

    def __init__(self, attention: TritonAttention, most: int) -> None:
        self._attention = attention
        self._most = most

    def prepare(self, spans: Sequence[Span]) -> AttentionPass:
        if len(spans) <= self._most and all(span.count == 1 for span in spans):
            return SpansOnly(spans)
        return self._attention.prepare(spans)


@dataclass(frozen=True, slots=True)
class SpansOnly:
    """Stands for a pass that is recorded already."""

    spans: Sequence[Span]

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rotation: Rotation, window: int
    ) -> torch.Tensor:
        raise AssertionError("a recorded batch is never run eagerly")
