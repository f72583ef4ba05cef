"""From settings to a ready `EngineCore`: model, cache, scheduler, and what requests may ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from roundhouse_torch.engine.adapters import Adapters
from roundhouse_torch.engine.core import EngineCore
from roundhouse_torch.engine.entrance import Entrance
from roundhouse_torch.engine.grammar import Grammars
from roundhouse_torch.engine.parallel import LeadingDecoder, LedAttention
from roundhouse_torch.engine.runner import ModelRunner
from roundhouse_torch.errors import SettingsError
from roundhouse_torch.kvcache.blocks import BlockPool
from roundhouse_torch.kvcache.host import HostTier
from roundhouse_torch.kvcache.storage import BlockMover, KVStorage
from roundhouse_torch.messages.report import Loaded
from roundhouse_torch.models.adapter import AdapterError
from roundhouse_torch.models.checkpoint import Checkpoint
from roundhouse_torch.models.layers.lora import LoraSites
from roundhouse_torch.models.layers.shard import Shard
from roundhouse_torch.models.loading import load_model
from roundhouse_torch.scheduler.scheduler import Limits, Scheduler
from roundhouse_torch.scheduler.speculation import NgramDrafter, Speculation
from roundhouse_torch.settings import EngineSettings

STEP_TOKENS = {"cpu": 512, "cuda": 8192}
"""Default ``--max-num-batched-tokens``: some tenths of a second of prefill."""


@dataclass(frozen=True, slots=True)
class Engine:
    core: EngineCore
    loaded: Loaded


def build(
    settings: EngineSettings, followers: Sequence[Connection] = (), checkpoint: Checkpoint | None = None
) -> Engine:
    """``followers``: see `parallel`; ``checkpoint``: default, what the model folder holds.

    Raises `ModelError` and `SettingsError`.
    """
    model = load_model(settings, Shard(0, 1 + len(followers)), checkpoint)
    config, storage = model.config, model.storage
    device = storage.device.type
    host = HostTier(host_blocks(settings, storage)) if settings.host_cache_bytes else None
    guesses = Speculation(NgramDrafter(), most=settings.spec_tokens, max_answers=settings.spec_max_batch)
    scheduler = Scheduler(
        BlockPool(model.blocks, host),
        settings.block_size,
        Limits(settings.max_num_seqs, settings.max_num_batched_tokens or STEP_TOKENS[device]),
        prefix_caching=settings.enable_prefix_caching,
        speculation=guesses if settings.spec_method == "ngram" else None,
    )
    decoder, attention = model.decoder, model.attention
    if followers:
        attention = led = LedAttention(attention)
        decoder = LeadingDecoder(decoder, led, followers)
    adapters = load_adapters(settings, model.sites) if model.sites is not None else None
    mover = BlockMover(storage, host.slots) if host is not None else None
    grammars = Grammars(settings.model / "tokenizer.json", config.vocab_size, config.eos_ids)
    core = EngineCore(
        scheduler,
        ModelRunner(decoder, attention, storage.device, adapters, mover),
        Entrance(settings.names[0], grammars, adapters),
    )
    length = fitting_length(settings, model.length, model.blocks)
    dtype = str(storage.dtype).removeprefix("torch.")
    return Engine(core, Loaded(length, settings.block_size, model.blocks, dtype, device))


def load_adapters(settings: EngineSettings, sites: LoraSites) -> Adapters:
    """Those of ``--lora-modules`` are there from the start. Raises `SettingsError`."""
    adapters = Adapters(sites, slots=settings.max_loras, max_rank=settings.max_lora_rank)
    for name, folder in settings.adapters.items():
        try:
            adapters.load(name, Path(folder))
        except AdapterError as error:
            raise SettingsError(f"--lora-modules {name}: {error}") from error
    return adapters


def host_blocks(settings: EngineSettings, storage: KVStorage) -> int:
    """Raises `SettingsError` when not one block fits."""
    per_block = storage.blocks[0].nbytes
    if settings.host_cache_bytes < per_block:
        raise SettingsError(f"--host-cache-bytes {settings.host_cache_bytes} is less than one block of {per_block}")
    return settings.host_cache_bytes // per_block


def fitting_length(settings: EngineSettings, wanted: int, blocks: int) -> int:
    """Raises `SettingsError` when the user's own ``--max-model-len`` does not fit; the model's is cut to what does."""
    fits = blocks * settings.block_size
    if wanted > fits and settings.max_model_len is not None:
        raise SettingsError(
            f"--max-model-len {wanted} needs a KV cache for {wanted} tokens but it holds {fits}; raise --kv-cache-bytes"
        )
    return min(wanted, fits)
