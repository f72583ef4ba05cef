"""Logits of tiny random models within 1e-4 of transformers, however work is cut, shared, interrupted or laid out."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from roundhouse_torch.engine.runner import ModelRunner, in_batch_order
from roundhouse_torch.kernels.plain import TorchOperations
from roundhouse_torch.kvcache import chain
from roundhouse_torch.kvcache.blocks import BlockPool
from roundhouse_torch.kvcache.host import HostTier
from roundhouse_torch.kvcache.storage import FP8, BlockMover, KVStorage
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.models.checkpoint import Checkpoint
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.registry import load_factory
from roundhouse_torch.models.weights import Weights
from roundhouse_torch.scheduler.scheduler import Limits, Scheduler
from roundhouse_torch.scheduler.sequence import Sequence
from roundhouse_torch.scheduler.step import Work
from transformers import AutoModelForCausalLM

from tests.support.tiny_models import write_model

CPU = torch.device("cpu")
TOLERANCE = 1e-4
ROPE = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one key head": {"num_key_value_heads": 1},
    "all key heads": {"num_key_value_heads": 4},
    "wide heads": {"head_dim": 32},
    "llama3 rope": {"rope_scaling": {**ROPE, "original_max_position_embeddings": 64}},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 20},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen2 with a window": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False},
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}
FAMILIES = ("plain", "llama3 rope", "mistral", "qwen2", "qwen2 with a window", "qwen3")
"""For which everything is tried; windows of 20 tokens begin within blocks and between them."""


class Bench:
    """One model in our engine and in transformers."""

    def __init__(self, folder: Path, block_size: int = 16, blocks: int = 64) -> None:
        self.config = ModelConfig.read(folder)
        build = load_factory(self.config.architecture)
        self.model = build(self.config, Weights(Checkpoint(folder), CPU, torch.float32), self.config.max_position)
        self.oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.lay_out(block_size, blocks)

    def lay_out(self, block_size: int, blocks: int, *, host: int = 0, kv_dtype: torch.dtype = torch.float32) -> None:
        """``host``: blocks of the second tier."""
        self.block_size, self.blocks, self.host = block_size, blocks, host
        config = self.config
        shape = (block_size, config.num_layers, config.num_kv_heads, config.head_dim)
        storage = KVStorage(blocks, *shape, device=CPU, dtype=kv_dtype, compute_dtype=torch.float32)
        storage.tensor.fill_(7.0)  # stale content must not matter
        attention = TorchOperations().attention(storage, config)
        self.runner = ModelRunner(self.model, attention, CPU, mover=BlockMover(storage, host))

    def expected(self, tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self.oracle(torch.tensor([tokens])).logits[0]
        return logits

    def logits(self, work: list[Work]) -> torch.Tensor:
        return self.runner.logits(in_batch_order(work))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def make(name: str) -> Bench:
        return Bench(write_model(tmp_path_factory.mktemp("model"), CONFIGS[name]))

    return make


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, bench: Any) -> Bench:
    found: Bench = bench(request.param)
    return found


def some_tokens(count: int, seed: int = 0) -> list[int]:
    found: list[int] = torch.randint(3, 500, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def in_blocks(tokens: list[int], block_size: int, first_block: int = 0, id: int = 0) -> Sequence:
    """A sequence with blocks for all its tokens, in an order that is not that of the pool."""
    sequence = Sequence(id, tokens, Sampling(), max_length=len(tokens) + 1, root=b"")
    count = -(-len(tokens) // block_size)
    sequence.blocks = list(range(first_block + count - 1, first_block - 1, -1))
    return sequence


def check_chunks(bench: Bench, tokens: list[int], chunks: list[int]) -> None:
    """The logits at the end of every chunk."""
    expected = bench.expected(tokens)
    sequence = in_blocks(tokens, bench.block_size)
    start = 0
    for count in chunks:
        logits = bench.logits([Work(sequence, start, count, True)])
        start += count
        torch.testing.assert_close(logits[0], expected[start - 1], atol=TOLERANCE, rtol=0)
    assert start == len(tokens)


@pytest.mark.parametrize("name", CONFIGS)
def test_full_prefill(bench: Any, name: str) -> None:
    check_chunks(bench(name), some_tokens(70), [70])


@pytest.mark.parametrize("name", CONFIGS)
def test_token_by_token(bench: Any, name: str) -> None:
    check_chunks(bench(name), some_tokens(40), [1] * 40)


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize(
    "chunks", [[1, 79], [15, 1, 64], [16, 16, 48], [17, 31, 32], [64, 16], [79, 1], [3] * 26 + [2]], ids=str
)
def test_every_chunking_and_block_size(family: Bench, block_size: int, chunks: list[int]) -> None:
    family.lay_out(block_size, -(-80 // block_size))
    check_chunks(family, some_tokens(80), chunks)


def test_mixed_batch_of_decodes_chunks_and_whole_prompts(family: Bench) -> None:
    family.lay_out(16, 64)
    lengths = [5, 33, 90, 17, 64, 48, 16, 100]
    starts = [4, 32, 30, 0, 63, 16, 15, 99]
    sequences = []
    for index, length in enumerate(lengths):
        first = sum(-(-other // 16) for other in lengths[:index])
        sequences.append(in_blocks(some_tokens(length, index), 16, first, index))
    begun = [Work(sequence, 0, start, False) for sequence, start in zip(sequences, starts, strict=True) if start]
    family.logits([*begun[:-1], Work(begun[-1].sequence, 0, begun[-1].count, True)])
    work = in_batch_order(
        [Work(seq, start, len(seq.tokens) - start, True) for seq, start in zip(sequences, starts, strict=True)]
    )
    logits = family.runner.logits(work)
    for row, item in enumerate(work):
        expected = family.expected(item.sequence.tokens)[-1]
        torch.testing.assert_close(logits[row], expected, atol=TOLERANCE, rtol=0)


class Recorder:
    """Runs a scheduler's plans and compares every sampling row with the oracle."""

    def __init__(self, bench: Bench, max_sequences: int, max_tokens: int) -> None:
        self._bench = bench
        tier = HostTier(bench.host) if bench.host else None
        self.scheduler = Scheduler(BlockPool(bench.blocks, tier), bench.block_size, Limits(max_sequences, max_tokens))
        self.loads = 0
        self.preemptions = 0

    def add(self, id: int, prompt: list[int], answer: int) -> Sequence:
        root = chain.root("model", "", "")
        sequence = Sequence(id, list(prompt), Sampling(temperature=0), max_length=len(prompt) + answer, root=root)
        self.scheduler.add(sequence)
        return sequence

    def run(self) -> None:
        while self.scheduler.running or self.scheduler.waiting:
            plan = self.scheduler.plan()
            self.preemptions += len(plan.preempted)
            self.loads += sum(not move.to_host for move in plan.moves)
            self._bench.runner.move(plan.moves)
            if plan.work:
                self.scheduler.commit(plan, self._sample(plan.work))

    def _sample(self, work: list[Work]) -> list[list[int]]:
        ordered = in_batch_order(work)
        logits = self._bench.runner.logits(ordered)
        rows = {item.sequence.id: row for row, item in enumerate(item for item in ordered if item.samples)}
        tokens = []
        for item in work:
            if item.samples:
                found = logits[rows[item.sequence.id]]
                expected = self._bench.expected(item.sequence.tokens)[-1]
                torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
                tokens.append([int(found.argmax())])
        return tokens


SPLITS = [*((1, n) for n in (1, 48)), *((16, n) for n in (1, 15, 16, 17, 47, 48, 49)), *((64, n) for n in (63, 64, 65))]


@pytest.mark.parametrize(("block_size", "shared"), SPLITS)
def test_prefix_hits_at_every_kind_of_split(family: Bench, block_size: int, shared: int) -> None:
    family.lay_out(block_size, 512 // block_size)
    recorder = Recorder(family, 4, 512)
    first = some_tokens(129 if block_size == 64 else 49)
    recorder.add(0, first, 3)
    recorder.run()
    again = recorder.add(1, first[:shared] + some_tokens(9, 1), 3)
    recorder.run()
    assert again.cached == shared // block_size * block_size


def test_a_prompt_of_whole_blocks_that_is_cached_completely_recomputes_its_last_block(family: Bench) -> None:
    family.lay_out(16, 32)
    recorder = Recorder(family, 4, 512)
    prompt = some_tokens(48)
    recorder.add(0, prompt, 2)
    recorder.run()
    again = recorder.add(1, prompt, 2)
    recorder.run()
    assert again.cached == 32


TIGHT = [(1, 96, 20), (16, 6, 20), (64, 5, 50)]
"""Block size, blocks, and length of prompts that fit in fours, but not with their answers."""


@pytest.mark.parametrize(("block_size", "blocks", "length"), TIGHT)
def test_preempted_and_resumed_sequences(family: Bench, block_size: int, blocks: int, length: int) -> None:
    family.lay_out(block_size, blocks)
    recorder = Recorder(family, 4, 32)
    for id in range(4):
        recorder.add(id, some_tokens(length + id, id), 40)
    recorder.run()
    assert recorder.preemptions > 0


@pytest.mark.parametrize(("block_size", "blocks", "length"), TIGHT)
def test_blocks_that_were_swapped_out_and_in(family: Bench, block_size: int, blocks: int, length: int) -> None:
    """A prompt evicted by others comes back from the second tier; preempted sequences do too."""
    family.lay_out(block_size, blocks, host=400 // block_size)
    recorder = Recorder(family, 4, 32)
    first = some_tokens(70)
    recorder.add(0, first, 2)
    recorder.run()
    for id in range(1, 5):
        recorder.add(id, some_tokens(length + id, id), 40)
    recorder.run()
    assert recorder.preemptions > 0
    loads = recorder.loads
    again = recorder.add(5, first + some_tokens(5, 9), 3)
    recorder.run()
    assert recorder.loads > loads
    assert again.cached == 70 // block_size * block_size


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("right", [0, 1, 3])
def test_guesses_are_verified_and_what_was_wrong_is_written_over(family: Bench, block_size: int, right: int) -> None:
    """Three guesses from the 62nd token on, over the end of a block, of which the first ``right`` are."""
    family.lay_out(block_size, -(-80 // block_size))
    tokens = some_tokens(70)
    sequence = in_blocks(tokens[:62], block_size)
    sequence.blocks = in_blocks(tokens, block_size).blocks
    guesses = (*tokens[62 : 62 + right], *(3 + (token + 1) % 500 for token in tokens[62 + right : 65]))
    family.logits([Work(sequence, 0, 61, True)])
    found = family.logits([Work(sequence, 61, 4, True, guesses)])
    torch.testing.assert_close(found, family.expected([*sequence.tokens, *guesses])[61:], atol=TOLERANCE, rtol=0)
    start = 62 + right
    sequence.tokens = tokens
    found = family.logits([Work(sequence, start, 70 - start, True)])
    torch.testing.assert_close(found[0], family.expected(tokens)[-1], atol=TOLERANCE, rtol=0)


def test_fp8_cache_is_close_and_does_not_depend_on_chunks(bench: Any) -> None:
    plain, tokens = bench("plain"), some_tokens(60)
    expected = plain.expected(tokens)[-1]
    found = []
    for chunks in ([60], [16, 44], [59, 1], [1] * 60):
        plain.lay_out(16, 8, kv_dtype=FP8)
        sequence, start = in_blocks(tokens, 16), 0
        for count in chunks:
            logits = plain.logits([Work(sequence, start, count, True)])
            start += count
        found.append(logits[0])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=0.05, rtol=0)
    assert 1e-4 < (found[0] - expected).abs().max() < 0.3 * expected.std()
