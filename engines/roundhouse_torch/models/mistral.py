"""Mistral: Llama without biases; its sliding window is in `ModelConfig.windows`."""

from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.dense import DenseDecoder, Family, build_dense
from roundhouse_torch.models.weights import Weights


def build(config: ModelConfig, weights: Weights, max_length: int) -> DenseDecoder:
    """See `DecoderFactory`."""
    return build_dense(config, weights, max_length, Family())
