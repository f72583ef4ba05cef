"""A planned step as tensors, through the model, to one token per sampling row."""

from collections.abc import Sequence as Many

import torch

from roundhouse_torch.attention.backend import AttentionBackend, Span
from roundhouse_torch.engine.sampler import sample
from roundhouse_torch.models.decoder import Decoder
from roundhouse_torch.scheduler.step import Work


def in_batch_order(work: Many[Work]) -> list[Work]:
    """Single tokens first, the longest contexts of them first; see `AttentionBackend`."""
    singles = sorted((item for item in work if item.count == 1), key=lambda item: -item.start)
    return singles + [item for item in work if item.count > 1]


class ModelRunner:
    """Runs on one device; not thread safe."""

    def __init__(self, model: Decoder, attention: AttentionBackend, device: torch.device) -> None:
        self._model = model
        self._attention = attention
        self._device = device

    @torch.inference_mode()
    def run(self, work: Many[Work]) -> list[int]:
        """Compute all of ``work`` in one batch. Gives the samples of its sampling items, in the order of ``work``."""
        ordered = in_batch_order(work)
        sampling = [item for item in ordered if item.samples]
        logits = self.logits(ordered)
        tokens = dict(
            zip(
                (item.sequence.id for item in sampling),
                sample(logits, [item.sequence for item in sampling]),
                strict=True,
            )
        )
        return [tokens[item.sequence.id] for item in work if item.samples]

    @torch.inference_mode()
    def logits(self, ordered: Many[Work]) -> torch.Tensor:
        """Logits after the last token of each sampling item; ``ordered`` as by `in_batch_order`."""
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for item in ordered:
            end = item.start + item.count
            ids += item.sequence.tokens[item.start : end]
            positions += range(item.start, end)
            if item.samples:
                rows.append(len(ids) - 1)
        attend = self._attention.prepare([Span(item.start, item.count, item.sequence.blocks) for item in ordered])
        hidden = self._model.forward(self._tensor(ids), self._tensor(positions), attend)
        return self._model.logits(hidden if len(rows) == len(ids) else hidden[self._tensor(rows)])

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)
