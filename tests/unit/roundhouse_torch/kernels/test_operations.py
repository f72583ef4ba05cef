"""A whole tiny model over the Triton kernels, in the interpreter, against the same model over PyTorch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from roundhouse_torch.engine.runner import ModelRunner, in_batch_order
from roundhouse_torch.kernels.graphs import GraphedAttention, GraphedDecoder, sizes_up_to
from roundhouse_torch.kernels.operations import TritonAttention, TritonOperations
from roundhouse_torch.kernels.plain import TorchOperations
from roundhouse_torch.kvcache.storage import KVStorage
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.models.checkpoint import Checkpoint
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.layers.operations import Operations
from roundhouse_torch.models.registry import load_factory
from roundhouse_torch.models.weights import Weights
from roundhouse_torch.scheduler.sequence import Sequence
from roundhouse_torch.scheduler.step import Work

from tests.support.tiny_models import write_model

CPU = torch.device("cpu")
TOLERANCE = 2e-4
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 1}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": 9,
    "num_hidden_layers": 1,
}


class Half:
    """One model over one kind of operations."""

    def __init__(self, folder: Path, operations: Operations) -> None:
        config = ModelConfig.read(folder)
        weights = Weights(Checkpoint(folder), CPU, torch.float32, config.scheme, operations)
        self.decoder = load_factory(config.architecture)(config, weights, 64)
        self.storage = KVStorage(
            12, 16, config.num_layers, config.num_kv_heads, config.head_dim, device=CPU, dtype=torch.float32
        )
        self.attention = operations.attention(self.storage, config)

    def runner(self) -> ModelRunner:
        return ModelRunner(self.decoder, self.attention, CPU)


def sequences() -> list[Sequence]:
    made = []
    for id, length in enumerate((20, 33, 5)):
        tokens = torch.randint(3, 500, (length,), generator=torch.Generator().manual_seed(id)).tolist()
        sequence = Sequence(id, tokens, Sampling(), max_length=64, root=b"")
        sequence.blocks = [3 * id + 2, 3 * id, 3 * id + 1]
        made.append(sequence)
    return made


@pytest.mark.parametrize("family", [QWEN3, MISTRAL], ids=["qwen3", "mistral"])
def test_prompts_chunks_and_mixed_batches(tmp_path: Path, family: dict[str, Any]) -> None:
    folder = write_model(tmp_path, family)
    torch_half, triton_half = Half(folder, TorchOperations()), Half(folder, TritonOperations())
    first, second, third = sequences()
    for work in (
        [Work(first, 0, 19, True), Work(second, 0, 10, True)],
        in_batch_order([Work(first, 19, 1, True), Work(second, 10, 23, True), Work(third, 0, 5, True)]),
    ):
        expected, found = torch_half.runner().logits(work), triton_half.runner().logits(work)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def run_again(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A `Capture` without a device: same buffers, the work done anew."""
    run()
    return run


def test_decode_batches_padded_into_recorded_sizes(tmp_path: Path) -> None:
    folder = write_model(tmp_path, QWEN3)
    torch_half, triton_half = Half(folder, TorchOperations()), Half(folder, TritonOperations())
    assert isinstance(triton_half.attention, TritonAttention)
    with torch.inference_mode():
        graphed = GraphedDecoder(triton_half.decoder, triton_half.attention, (1, 2, 4), 3, run_again)
    recorded = ModelRunner(graphed, GraphedAttention(triton_half.attention, 4), CPU)
    made = sequences()
    prompts = [Work(sequence, 0, len(sequence.tokens) - 1, True) for sequence in made]
    expected, found = torch_half.runner().logits(prompts), recorded.logits(prompts)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    work = in_batch_order([Work(sequence, len(sequence.tokens) - 1, 1, True) for sequence in made])
    before = triton_half.storage.tensor.clone()
    expected, found = torch_half.runner().logits(work), recorded.logits(work)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    changed = (triton_half.storage.tensor != before).flatten(1).any(1)
    assert int(changed.sum()) == len(made), "padding wrote into the cache"
    one = [work[0]]
    torch.testing.assert_close(recorded.logits(one), torch_half.runner().logits(one), atol=TOLERANCE, rtol=0)


def test_recorded_sizes_cover_every_batch() -> None:
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(64) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert sizes_up_to(20) == [1, 2, 4, 8, 16, 20]
