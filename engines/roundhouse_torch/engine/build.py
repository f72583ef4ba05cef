"""From settings to a ready `EngineCore`: device, weights, KV memory, scheduler."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from roundhouse_torch.attention.paged import PagedAttention
from roundhouse_torch.engine.adapters import AdapterError, Adapters
from roundhouse_torch.engine.core import EngineCore
from roundhouse_torch.engine.entrance import Entrance
from roundhouse_torch.engine.grammar import Grammars
from roundhouse_torch.engine.runner import ModelRunner
from roundhouse_torch.errors import SettingsError
from roundhouse_torch.kvcache.blocks import BlockPool
from roundhouse_torch.kvcache.sizing import block_count, cache_bytes
from roundhouse_torch.kvcache.storage import KVStorage, block_bytes
from roundhouse_torch.layers.lora import LoraSites
from roundhouse_torch.messages.report import Loaded
from roundhouse_torch.models.checkpoint import Checkpoint
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.registry import load_factory
from roundhouse_torch.models.weights import Weights
from roundhouse_torch.scheduler.scheduler import Limits, Scheduler
from roundhouse_torch.scheduler.speculation import NgramDrafter, Speculation
from roundhouse_torch.settings import EngineSettings

log = logging.getLogger(__name__)

STEP_TOKENS = {"cpu": 512, "cuda": 8192}
"""Default ``--max-num-batched-tokens``: some tenths of a second of prefill."""


@dataclass(frozen=True, slots=True)
class Engine:
    core: EngineCore
    loaded: Loaded


def choose_device(name: str) -> torch.device:
    """Raises `SettingsError` for CUDA that is not there."""
    available = torch.cuda.is_available() if name != "cpu" else False
    if name == "cuda" and not available:
        raise SettingsError("--device cuda: this machine has no usable CUDA device")
    return torch.device("cuda" if available else "cpu")


def choose_dtype(name: str, device: torch.device, checkpoint_dtype: str) -> torch.dtype:
    if name == "auto":
        name = "float32" if device.type == "cpu" else checkpoint_dtype
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise SettingsError(f"the checkpoint's dtype {name!r} cannot be computed with; give --dtype")
    return dtype


def build(settings: EngineSettings) -> Engine:
    """Raises `ModelError` and `SettingsError`."""
    began = time.monotonic()
    config = ModelConfig.read(settings.model)
    factory = load_factory(config.architecture)
    torch.set_num_threads(settings.threads)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device, config.dtype)
    wanted_length = settings.max_model_len or config.max_position
    sites = LoraSites(device, dtype) if settings.enable_lora else None
    model = factory(config, Weights(Checkpoint(settings.model), device, dtype, sites), wanted_length)
    adapters = load_adapters(settings, sites) if sites is not None else None
    log.info("weights_loaded seconds=%.2f", time.monotonic() - began)

    shape = (settings.block_size, config.num_layers, config.num_kv_heads, config.head_dim)
    budget = cache_bytes(device, settings.kv_cache_bytes, settings.kv_cache_fraction)
    blocks = block_count(budget, block_bytes(*shape, dtype))
    storage = KVStorage(blocks, *shape, device=device, dtype=dtype)
    scheduler = Scheduler(
        BlockPool(blocks),
        settings.block_size,
        Limits(settings.max_num_seqs, settings.max_num_batched_tokens or STEP_TOKENS[device.type]),
        prefix_caching=settings.enable_prefix_caching,
        speculation=speculation(settings),
    )
    tokenizer = settings.model / "tokenizer.json"
    grammars = Grammars(tokenizer, config.vocab_size, config.eos_ids)
    runner = ModelRunner(model, PagedAttention(storage), device, adapters)
    core = EngineCore(scheduler, runner, Entrance(settings.names[0], grammars, adapters))
    loaded = Loaded(
        max_model_len=fitting_length(settings, wanted_length, blocks),
        block_size=settings.block_size,
        blocks=blocks,
        dtype=str(dtype).removeprefix("torch."),
        device=device.type,
    )
    return Engine(core, loaded)


def load_adapters(settings: EngineSettings, sites: LoraSites) -> Adapters:
    """Those of ``--lora-modules`` are there from the start. Raises `SettingsError`."""
    adapters = Adapters(sites, slots=settings.max_loras, max_rank=settings.max_lora_rank)
    for name, folder in settings.adapters.items():
        try:
            adapters.load(name, Path(folder))
        except AdapterError as error:
            raise SettingsError(f"--lora-modules {name}: {error}") from error
    return adapters


def speculation(settings: EngineSettings) -> Speculation | None:
    if settings.spec_method == "none":
        return None
    return Speculation(NgramDrafter(), most=settings.spec_tokens, max_answers=settings.spec_max_batch)


def fitting_length(settings: EngineSettings, wanted: int, blocks: int) -> int:
    """Raises `SettingsError` when the user's own ``--max-model-len`` does not fit; the model's is cut to what does."""
    fits = blocks * settings.block_size
    if wanted > fits and settings.max_model_len is not None:
        raise SettingsError(
            f"--max-model-len {wanted} needs a KV cache for {wanted} tokens but it holds {fits}; raise --kv-cache-bytes"
        )
    return min(wanted, fits)
