"""What every model family offers to the runner."""

from typing import Protocol

import torch

from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.layers.operations import AttentionPass
from roundhouse_torch.models.weights import Weights


class Decoder(Protocol):
    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: AttentionPass) -> torch.Tensor:
        """Hidden states of a flattened batch: tokens × hidden size."""
        ...

    def features(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states as the output layer sees them: what embeddings are made of."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows × vocabulary, float32."""
        ...


class DecoderFactory(Protocol):
    """The ``build`` function of a family's module. Raises `ModelError`."""

    def __call__(self, config: ModelConfig, weights: Weights, max_length: int) -> Decoder: ...
