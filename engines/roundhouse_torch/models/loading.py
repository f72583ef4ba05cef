"""One process's model: device, its shard of the weights, KV memory, attention; on CUDA with recorded decode steps."""

import logging
import math
import time
from dataclasses import dataclass, replace

import torch

from roundhouse_torch.errors import SettingsError
from roundhouse_torch.kernels.plain import TorchOperations
from roundhouse_torch.kvcache.sizing import block_count, cache_bytes
from roundhouse_torch.kvcache.storage import FP8, KVStorage
from roundhouse_torch.models.checkpoint import Checkpoint
from roundhouse_torch.models.config import ModelConfig
from roundhouse_torch.models.decoder import Decoder
from roundhouse_torch.models.layers.lora import LoraSites
from roundhouse_torch.models.layers.operations import AttentionBackend, Operations
from roundhouse_torch.models.layers.shard import ALONE, Shard, least
from roundhouse_torch.models.registry import load_factory
from roundhouse_torch.models.weights import Weights
from roundhouse_torch.settings import EngineSettings

log = logging.getLogger(__name__)

MOST_RECORDED = 256
"""Bigger decode batches keep the device busy while the host launches them."""


@dataclass(frozen=True, slots=True)
class Model:
    """``length``: the longest prompt and answer that the model or the user allows; ``sites`` with LoRA only."""

    config: ModelConfig
    decoder: Decoder
    attention: AttentionBackend
    storage: KVStorage
    blocks: int
    length: int
    sites: LoraSites | None = None


def choose_device(name: str, rank: int = 0) -> torch.device:
    """Raises `SettingsError` for CUDA that is not there."""
    available = torch.cuda.is_available() if name != "cpu" else False
    if name == "cuda" and not available:
        raise SettingsError("--device cuda: this machine has no usable CUDA device")
    if available and rank >= torch.cuda.device_count():
        raise SettingsError(f"--tensor-parallel-size needs a CUDA device each; there are {torch.cuda.device_count()}")
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


def load_model(settings: EngineSettings, shard: Shard = ALONE, checkpoint: Checkpoint | None = None) -> Model:
    """``checkpoint``: default, what the model folder holds. Raises `ModelError` and `SettingsError`."""
    began = time.monotonic()
    config = ModelConfig.read(settings.model)
    factory = load_factory(config.architecture)
    require_divisible(config, shard.size)
    torch.set_num_threads(settings.threads)
    device = choose_device(settings.device, shard.rank)
    dtype = choose_dtype(settings.dtype, device, config.dtype)
    length = settings.max_model_len or config.max_position
    operations = choose_operations(device)
    sites = LoraSites(device, dtype) if settings.enable_lora else None
    weights = Weights(checkpoint or Checkpoint(settings.model), device, dtype, config.scheme, operations, shard, sites)
    decoder = factory(config, weights, length)
    log.info("weights_loaded seconds=%.2f", time.monotonic() - began)

    kv_dtype = FP8 if settings.kv_cache_dtype == "fp8" else dtype
    shape = (settings.block_size, config.num_layers, config.num_kv_heads // shard.size, config.head_dim)
    budget = cache_bytes(device, settings.kv_cache_bytes, settings.kv_cache_fraction)
    blocks = block_count(budget, math.prod(shape) * 2 * kv_dtype.itemsize)
    if shard.size > 1:
        blocks = least(blocks, device)
    storage = KVStorage(blocks, *shape, device=device, dtype=kv_dtype, compute_dtype=dtype)
    model = Model(config, decoder, operations.attention(storage, config), storage, blocks, length, sites)
    records = device.type == "cuda" and settings.cuda_graphs and shard.size == 1 and sites is None
    return with_graphs(model, settings) if records else model


def with_graphs(model: Model, settings: EngineSettings) -> Model:
    """Decode steps are recorded once per batch size and replayed. Adapters change from step to step: not with them."""
    from roundhouse_torch.kernels.graphs import GraphedAttention, GraphedDecoder, cuda_graph, sizes_up_to
    from roundhouse_torch.kernels.operations import TritonAttention

    assert isinstance(model.attention, TritonAttention)
    most = min(settings.max_num_seqs, MOST_RECORDED)
    width = -(-min(model.length, model.blocks * settings.block_size) // settings.block_size)
    with torch.inference_mode():
        decoder = GraphedDecoder(model.decoder, model.attention, sizes_up_to(most), width, cuda_graph)
    return replace(model, decoder=decoder, attention=GraphedAttention(model.attention, most))


def require_divisible(config: ModelConfig, size: int) -> None:
    """Raises `SettingsError`: every process computes whole KV heads and equal slices."""
    for name, value in (("KV heads", config.num_kv_heads), ("intermediate_size", config.intermediate_size)):
        if value % size:
            raise SettingsError(f"--tensor-parallel-size {size} does not divide the model's {name} ({value})")
