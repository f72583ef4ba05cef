"""From settings to a ready `EngineCore`: device, weights, KV memory, scheduler."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch

from roundhouse_torch.attention.backend import AttentionBackend
from roundhouse_torch.engine.core import EngineCore
from roundhouse_torch.engine.parallel import LeadingDecoder, LedAttention, least
from roundhouse_torch.engine.runner import ModelRunner
from roundhouse_torch.errors import SettingsError
from roundhouse_torch.kvcache.blocks import BlockPool
from roundhouse_torch.kvcache.host import HostTier
from roundhouse_torch.kvcache.moves import BlockMover
from roundhouse_torch.kvcache.sizing import block_count, cache_bytes
from roundhouse_torch.kvcache.storage import FP8, KVStorage, block_bytes
from roundhouse_torch.layers.operations import Operations, TorchOperations
from roundhouse_torch.layers.shard import ALONE, Shard
from roundhouse_torch.messages.report import Loaded
from roundhouse_torch.models.checkpoint import Checkpoint
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.decoder import Decoder
from roundhouse_torch.models.registry import load_factory
from roundhouse_torch.models.weights import Weights
from roundhouse_torch.scheduler.scheduler import Limits, Scheduler
from roundhouse_torch.settings import EngineSettings

log = logging.getLogger(__name__)

STEP_TOKENS = {"cpu": 512, "cuda": 8192}
"""Default ``--max-num-batched-tokens``: some tenths of a second of prefill."""
MOST_RECORDED = 256
"""Bigger decode batches keep the device busy while the host launches them."""


@dataclass(frozen=True, slots=True)
class Engine:
    core: EngineCore
    loaded: Loaded


@dataclass(frozen=True, slots=True)
class Model:
    """One process's part of the model, and the memory that its attention works on."""

    config: ModelConfig
    decoder: Decoder
    attention: AttentionBackend
    storage: KVStorage
    blocks: int
    length: int


def choose_device(name: str, rank: int = 0) -> torch.device:
    """Raises `SettingsError` for CUDA that is not there."""
    available = torch.cuda.is_available() if name != "cpu" else False
    if name == "cuda" and not available:
        raise SettingsError("--device cuda: this machine has no usable CUDA device")
    return torch.device("cuda", rank) if available else torch.device("cpu")


def choose_dtype(name: str, device: torch.device, checkpoint_dtype: str) -> torch.dtype:
    if name == "auto":
        name = "float32" if device.type == "cpu" else checkpoint_dtype
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise SettingsError(f"the checkpoint's dtype {name!r} cannot be computed with; give --dtype")
    return dtype


def choose_operations(device: torch.device) -> Operations:
    if device.type != "cuda":
        return TorchOperations()
    from roundhouse_torch.kernels.operations import TritonOperations

    return TritonOperations()


def load_model(settings: EngineSettings, shard: Shard = ALONE) -> Model:
    """Raises `ModelError` and `SettingsError`."""
    began = time.monotonic()
    config = ModelConfig.read(settings.model)
    factory = load_factory(config.architecture)
    require_divisible(config, shard.size)
    torch.set_num_threads(settings.threads)
    device = choose_device(settings.device, shard.rank)
    dtype = choose_dtype(settings.dtype, device, config.dtype)
    kv_dtype = FP8 if settings.kv_cache_dtype == "fp8" else dtype
    length = settings.max_model_len or config.max_position
    operations = choose_operations(device)
    weights = Weights(Checkpoint(settings.model), device, dtype, config.scheme, operations, shard)
    decoder = factory(config, weights, length)
    log.info("weights_loaded seconds=%.2f", time.monotonic() - began)

    shape = (settings.block_size, config.num_layers, config.num_kv_heads // shard.size, config.head_dim)
    budget = cache_bytes(device, settings.kv_cache_bytes, settings.kv_cache_fraction)
    blocks = block_count(budget, block_bytes(*shape, kv_dtype))
    if shard.size > 1:
        blocks = least(blocks, device)
    storage = KVStorage(blocks, *shape, device=device, dtype=kv_dtype, compute_dtype=dtype)
    return Model(config, decoder, operations.attention(storage, config), storage, blocks, length)


def build(settings: EngineSettings, followers: Sequence[Connection] = ()) -> Engine:
    """Raises `ModelError` and `SettingsError`."""
    model = with_graphs(load_model(settings, Shard(0, 1 + len(followers))), settings)
    decoder, attention = model.decoder, model.attention
    if followers:
        attention = LedAttention(attention)
        decoder = LeadingDecoder(decoder, attention, followers)
    host = HostTier(host_blocks(settings, model.storage)) if settings.host_cache_bytes else None
    scheduler = Scheduler(
        BlockPool(model.blocks, host),
        settings.block_size,
        Limits(settings.max_num_seqs, settings.max_num_batched_tokens or STEP_TOKENS[model.storage.device.type]),
        prefix_caching=settings.enable_prefix_caching,
    )
    mover = BlockMover(model.storage, host.slots) if host is not None else None
    runner = ModelRunner(decoder, attention, model.storage.device, mover)
    core = EngineCore(scheduler, runner, settings.names[0])
    loaded = Loaded(
        max_model_len=fitting_length(settings, model.length, model.blocks),
        block_size=settings.block_size,
        blocks=model.blocks,
        dtype=str(model.storage.dtype).removeprefix("torch."),
        device=model.storage.device.type,
    )
    return Engine(core, loaded)


def with_graphs(model: Model, settings: EngineSettings) -> Model:
    """On CUDA, decode steps are recorded once per batch size and replayed."""
    if model.storage.device.type != "cuda" or not settings.cuda_graphs or settings.tensor_parallel_size > 1:
        return model
    from roundhouse_torch.kernels.graphs import GraphedAttention, GraphedDecoder, cuda_graph, sizes_up_to
    from roundhouse_torch.kernels.operations import TritonAttention

    assert isinstance(model.attention, TritonAttention)
    most = min(settings.max_num_seqs, MOST_RECORDED)
    width = -(-min(model.length, model.blocks * settings.block_size) // settings.block_size)
    with torch.inference_mode():
        decoder = GraphedDecoder(model.decoder, model.attention, sizes_up_to(most), width, cuda_graph)
    return replace(model, decoder=decoder, attention=GraphedAttention(model.attention, most))


def host_blocks(settings: EngineSettings, storage: KVStorage) -> int:
    """Raises `SettingsError` when not one block fits."""
    per_block = storage.blocks[0].nbytes
    if settings.host_cache_bytes < per_block:
        raise SettingsError(f"--host-cache-bytes {settings.host_cache_bytes} is less than one block of {per_block}")
    return settings.host_cache_bytes // per_block


def require_divisible(config: ModelConfig, size: int) -> None:
    """Raises `SettingsError`: every process computes whole KV heads and equal slices."""
    for name, value in (("KV heads", config.num_kv_heads), ("intermediate_size", config.intermediate_size)):
        if value % size:
            raise SettingsError(f"--tensor-parallel-size {size} does not divide the model's {name} ({value})")


def fitting_length(settings: EngineSettings, wanted: int, blocks: int) -> int:
    """Raises `SettingsError` when the user's own ``--max-model-len`` does not fit; the model's is cut to what does."""
    fits = blocks * settings.block_size
    if wanted > fits and settings.max_model_len is not None:
        raise SettingsError(
            f"--max-model-len {wanted} needs a KV cache for {wanted} tokens but it holds {fits}; raise --kv-cache-bytes"
        )
    return min(wanted, fits)
