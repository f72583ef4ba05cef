"""``python -m benchmarks.gpu_engine``: the bundled engine on one GPU, as shares of what the device can do, and vLLM.

Llama-3.1-8B's shape with random weights in bfloat16 (nothing is downloaded; vLLM makes its own, ``load_format dummy``).
First a tiny model over the Triton kernels must give the tokens that it gives over PyTorch. Then decode of 1, 32 and 128
answers behind 1,024 tokens of context each, as a share of memory bandwidth (weights and KV that a step must read), and
prefill of 8 × 2,048 tokens as a share of dense bfloat16 arithmetic. About 6 minutes on an H200, half of them vLLM's
start; without vLLM in the environment its columns are left out.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from roundhouse_torch.engine.build import Engine, build
from roundhouse_torch.engine.core import EngineCore
from roundhouse_torch.engine.sampler import Row, draw
from roundhouse_torch.messages.command import Add, Sampling
from roundhouse_torch.models.checkpoint import Checkpoint
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.scheduler.sequence import Sequence
from roundhouse_torch.settings import EngineSettings

from benchmarks.harness import BenchmarkError, print_result

LIMITS: Mapping[str, tuple[float, float]] = {
    "H200": (4.8e12, 989e12),
    "H100": (3.35e12, 989e12),
    "A100": (2.04e12, 312e12),
}
"""Bytes and dense bfloat16 operations per second, from the data sheets."""
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
TINY = CONFIG | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
TINY |= {"num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024, "torch_dtype": "float32"}
BATCHES = (1, 32, 128)
CONTEXT = 1024
STEPS = 128
PROMPTS, PROMPT = 8, 2048


class RandomCheckpoint(Checkpoint):
    """Any tensor that is asked for, the same for the same name."""

    def __init__(self, std: float, device: str) -> None:
        self._std = std
        self._device = device

    def __contains__(self, name: str) -> bool:
        return "scale" not in name

    def is_8_bit(self, name: str) -> bool:
        return False

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(shape, device=self._device)
        generator = torch.Generator(self._device).manual_seed(sum(name.encode()))
        return torch.randn(shape, generator=generator, device=self._device) * self._std


def main() -> None:
    try:
        bandwidth, flops = limits()
        check_kernels()
        ours = measure()
        theirs = measure_vllm() if find_spec("vllm") else {}
    except BenchmarkError as error:
        sys.exit(f"gpu-engine: {error}")
    figures = {name: {"roundhouse": value} for name, value in ours.items()}
    for name, value in theirs.items():
        figures[name]["vllm"] = value
    print_result("gpu_engine", {"torch": torch.__version__}, figures | shares(figures, bandwidth, flops))


def limits() -> tuple[float, float]:
    if not torch.cuda.is_available():
        raise BenchmarkError("no CUDA device: this benchmark needs one of " + ", ".join(LIMITS))
    name = torch.cuda.get_device_name()
    for known, found in LIMITS.items():
        if known in name:
            return found
    raise BenchmarkError(f"the limits of {name} are not known; add it to LIMITS")


def start(config: Mapping[str, Any], std: float, device: str, **options: Any) -> Engine:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(dict(config)))
        settings = EngineSettings(model=Path(folder), device=device, max_num_seqs=128, **options)
        return build(settings, checkpoint=RandomCheckpoint(std, "cpu" if config is TINY else device))


def check_kernels() -> None:
    """Prefill, chunks and recorded decode steps of a small model: the tokens of the PyTorch path."""
    prompts = [random.Random(seed).choices(range(3, 1000), k=20 + 17 * seed) for seed in range(6)]
    answers = []
    for device in ("cpu", "cuda"):
        core = start(TINY, 0.1, device, dtype="float32", kv_cache_bytes=64 << 20, max_num_batched_tokens=128).core
        for id, prompt in enumerate(prompts):
            core.add(Add(id, list(prompt), len(prompt) + 32, Sampling(temperature=0)))
        found: dict[int, list[int]] = {}
        while core.busy:
            for output in core.step().outputs:
                found.setdefault(output.id, []).extend(output.tokens)
        answers.append(found)
    equal = sum(answers[0][id] == answers[1][id] for id in answers[0])
    print(f"kernels: {equal} of {len(prompts)} answers equal those over PyTorch", flush=True)
    if equal < len(prompts) - 1:  # one near-tie may fall the other way in float32
        raise BenchmarkError("the Triton kernels do not compute what PyTorch does")
    check_draws()


def check_draws(count: int = 8192) -> None:
    """Random tokens of the sampling kernel are those that top-k and top-p allow, as often as they should be."""
    logits = torch.tensor([0.05, 0.4, 0.1, 0.3, 0.15]).log().repeat(count, 1).cuda()
    picks = [Sampling(seed=seed, top_k=4, top_p=0.85) for seed in range(count)]
    rows = [Row(Sequence(id, [0], pick, max_length=2, root=b"")) for id, pick in enumerate(picks)]
    shares = torch.tensor(draw(logits, rows)).bincount(minlength=5) / count
    print(f"kernels: sampled {shares.tolist()}", flush=True)
    if not torch.allclose(shares, torch.tensor([0, 0.4, 0, 0.3, 0.15]) / 0.85, atol=0.03):
        raise BenchmarkError("the sampling kernel does not draw what it should")


def measure() -> dict[str, float]:
    return measure_core(start(CONFIG, 0.02, "cuda").core)


def measure_core(core: EngineCore) -> dict[str, float]:
    """Every prompt is new; a workload that was not seen yet is run once before it counts."""
    ids = iter(range(1_000_000))

    def ask(count: int, prompt: int, answer: int) -> None:
        for id, _ in zip(ids, range(count), strict=False):
            tokens = random.Random(id).choices(range(3, 1000), k=prompt)
            core.add(Add(id, tokens, prompt + answer, Sampling(temperature=0)))

    ask(PROMPTS, PROMPT, 1)
    drain(core)
    ask(PROMPTS, PROMPT, 1)
    seconds, _ = drain(core)
    found = {"prefill_tokens_s": PROMPTS * PROMPT / seconds}
    for batch in BATCHES:
        ask(batch, CONTEXT, STEPS + 1)
        begun: set[int] = set()
        while len(begun) < batch:
            begun.update(output.id for output in core.step().outputs)
        seconds, tokens = drain(core)
        found[f"decode_b{batch}_tokens_s"] = tokens / seconds
    return found


def drain(core: EngineCore) -> tuple[float, int]:
    """Seconds and tokens until nothing is left to do."""
    began, tokens = time.perf_counter(), 0
    while core.busy:
        tokens += sum(len(output.tokens) for output in core.step().outputs)
    return time.perf_counter() - began, tokens


def measure_vllm() -> dict[str, float]:
    """In a process of its own, with the same shape and workload."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        code = VLLM.format(folder=folder, batches=BATCHES, context=CONTEXT, steps=STEPS, prompts=PROMPTS, prompt=PROMPT)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise BenchmarkError(f"vLLM failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


VLLM = """
import json, random, time
from vllm import LLM, SamplingParams
llm = LLM({folder!r}, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=8192)
def ask(count, prompt, answer):
    prompts = [dict(prompt_token_ids=random.choices(range(3, 100_000), k=prompt)) for _ in range(count)]
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - began
ask({prompts}, {prompt}, 1)
found = dict(prefill_tokens_s={prompts} * {prompt} / ask({prompts}, {prompt}, 1))
for batch in {batches}:
    found[f"decode_b{{batch}}_tokens_s"] = batch * {steps} / (
        ask(batch, {context}, {steps} + 1) - ask(batch, {context}, 1))
print(json.dumps(found))
"""


def shares(figures: Mapping[str, Mapping[str, float]], bandwidth: float, flops: float) -> dict[str, dict[str, float]]:
    """Of the bytes that a decode step must read, and of the operations that prefill must do, per second."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        config = ModelConfig.read(Path(folder))
    read_once = config.parameters - config.vocab_size * config.hidden_size  # the input embedding is looked up
    per_token = 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
    found: dict[str, dict[str, float]] = {}
    for batch in BATCHES:
        step_bytes = 2 * read_once + batch * per_token * (CONTEXT + STEPS / 2)
        found[f"decode_b{batch}_bandwidth_share"] = {
            system: value / batch * step_bytes / bandwidth
            for system, value in figures[f"decode_b{batch}_tokens_s"].items()
        }
    head = config.vocab_size * config.hidden_size  # computed for the last token of a prompt alone
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * PROMPT / 2
    operations = 2 * (read_once - head) + attention
    found["prefill_flop_share"] = {
        system: value * operations / flops for system, value in figures["prefill_tokens_s"].items()
    }
    return found


if __name__ == "__main__":
    main()
