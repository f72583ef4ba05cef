"""A planned step as tensors, through the model, to tokens."""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from roundhouse_torch.engine.adapters import Adapters
from roundhouse_torch.engine.sampler import Row, sample
from roundhouse_torch.kvcache.host import Move
from roundhouse_torch.kvcache.storage import BlockMover
from roundhouse_torch.models.decoder import Decoder
from roundhouse_torch.models.layers.operations import AttentionBackend, Span
from roundhouse_torch.scheduler.step import Samples, Work


def in_batch_order(work: Many[Work]) -> list[Work]:
    """Single tokens first, the longest contexts of them first; see `AttentionBackend`."""
    singles = sorted((item for item in work if item.count == 1), key=lambda item: -item.start)
    return singles + [item for item in work if item.count > 1]


def _rows(item: Work) -> list[Row]:
    """Where a token is drawn: behind the sequence, and behind each guess as if those before it were the answer."""
    if not item.draft:
        return [Row(item.sequence)]
    return [Row(item.sequence, item.draft[:ahead]) for ahead in range(len(item.draft) + 1)]


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """Runs on one device; not thread safe."""

    model: Decoder
    attention: AttentionBackend
    device: torch.device
    adapters: Adapters | None = None
    mover: BlockMover | None = None

    @torch.inference_mode()
    def move(self, moves: Many[Move]) -> None:
        """Before the step that was planned with them is run."""
        assert self.mover is not None
        self.mover.run(moves)

    @torch.inference_mode()
    def run(self, work: Many[Work]) -> Samples:
        """Compute all of ``work`` in one batch. Gives the samples of its sampling items, in the order of ``work``."""
        ordered = in_batch_order(work)
        hidden = self._hidden(ordered)
        rows = [row for item in ordered if item.samples for row in _rows(item)]
        result = Samples()
        pooled = [index for index, row in enumerate(rows) if row.sequence.pooled]
        if pooled:
            features = self.model.features(hidden[self._tensor(pooled)]).float()
            for at, vector in zip(pooled, normalize(features, dim=-1).cpu().numpy(), strict=True):
                result.vectors[rows[at].sequence.id] = vector.tobytes()
            drawn = [index for index, row in enumerate(rows) if not row.sequence.pooled]
            hidden, rows = hidden[self._tensor(drawn)], [rows[index] for index in drawn]
        tokens, result.logprobs = sample(self.model.logits(hidden), rows) if rows else ({}, {})
        result.tokens = [tokens.get(item.sequence.id, []) for item in work if item.samples]
        return result

    @torch.inference_mode()
    def logits(self, ordered: Many[Work]) -> torch.Tensor:
        """Logits of each token that a sampling item draws behind; ``ordered`` as by `in_batch_order`."""
        return self.model.logits(self._hidden(ordered))

    def _hidden(self, ordered: Many[Work]) -> torch.Tensor:
        """Hidden states of the last token of each sampling item and of what its draft puts behind."""
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for item in ordered:
            end = item.start + item.count
            ids += item.sequence.tokens[item.start : end]
            ids += item.draft
            positions += range(item.start, end)
            if item.samples:
                rows += range(len(ids) - 1 - len(item.draft), len(ids))
        if self.adapters is not None:
            self.adapters.select([(item.sequence.adapter, item.count) for item in ordered])
        attend = self.attention.prepare([Span(item.start, item.count, item.sequence.blocks) for item in ordered])
        hidden = self.model.forward(self._tensor(ids), self._tensor(positions), attend)
        return hidden if len(rows) == len(ids) else hidden[self._tensor(rows)]

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)
