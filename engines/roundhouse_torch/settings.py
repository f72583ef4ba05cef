"""Every knob of the engine, parsed once in ``main()``. The flags are made from the fields, and so is the docs page."""

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from roundhouse_torch.errors import SettingsError

KV_DTYPES = ("auto", "fp8")
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def parse_bytes(text: str) -> int:
    """``"2GiB"``, ``"500M"`` or ``"1048576"`` as a number of bytes. Raises `ValueError`."""
    lowered = text.strip().lower().removesuffix("b")
    digits = lowered.rstrip("kmgti")
    if lowered[len(digits) :] not in _UNITS:
        raise ValueError(f"{text!r} has no unit out of B, k, M, G, KiB, MiB, GiB, TiB")
    return int(float(digits) * _UNITS[lowered[len(digits) :]])


def default_threads() -> int:
    """A quarter of the cores we may run on, 1 to 4: replicas and gateways share the machine, and idle pool threads
    cost.
    """
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))


def _knob(help_text: str, default: Any, *, least: float = -math.inf, **options: Any) -> Any:
    """A flag of the default's type, unless ``options`` for argparse say otherwise. ``least``: the smallest value."""
    if isinstance(default, (int, float)) and not isinstance(default, bool):
        options.setdefault("type", type(default))
    return field(default=default, metadata={"help": help_text, "least": least, "options": options})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Flags are the field names with dashes."""

    model: Path = _knob("Folder with config.json, safetensors and tokenizer.json.", MISSING, type=Path)  # noqa: RUF009
    served_model_name: tuple[str, ...] = _knob(
        "Names that requests may use; the first is reported. Default: the folder's name.", (), nargs="+"
    )
    host: str = _knob("Address to listen on; loopback by default so that nothing is exposed by accident.", "127.0.0.1")
    port: int = _knob("TCP port; 0 takes a free one and logs it.", 8000, least=0)
    kv_events: str = _knob("ZMQ endpoint (ipc://…) to publish KV events on; empty publishes none.", "")
    kv_replay: str = _knob("ZMQ endpoint (ipc://…) that answers replay and snapshot requests.", "")
    shutdown_timeout: float = _knob(
        "Seconds that running requests get after SIGTERM; then their streams end with finish_reason abort.",
        0.0,
        least=0,
    )
    block_size: int = _knob("Tokens per KV block: the unit of prefix reuse and of KV events.", 16, least=1)
    kv_cache_bytes: int | None = _knob(
        "Size of the KV cache, such as 2GiB. Default: from --kv-cache-fraction.", None, type=parse_bytes, least=1
    )
    kv_cache_fraction: float | None = _knob(
        "Share of memory for the KV cache when no size is given: of free device memory on CUDA (default 0.9), of the "
        "memory this process may use on CPU (default 0.1: several replicas share a machine).",
        None, type=float, least=0,
    )  # fmt: skip
    kv_cache_dtype: str = _knob(
        "Type of stored keys and values: auto is the arithmetic's, fp8 (e4m3) takes a half or a quarter of it and "
        "costs accuracy.",
        "auto", choices=KV_DTYPES,
    )  # fmt: skip
    host_cache_bytes: int = _knob(
        "Host memory for KV blocks that are evicted from the cache, such as 8GiB; 0 keeps none. They come back by a "
        "copy instead of being computed again.",
        0, type=parse_bytes, least=0,
    )  # fmt: skip
    enable_prefix_caching: bool = _knob("Reuse the KV blocks of equal prefixes.", True)
    max_model_len: int | None = _knob(
        "Longest prompt + answer in tokens. Default: what the model was made for, or what fits into the KV cache.",
        None, type=int, least=2,
    )  # fmt: skip
    max_num_seqs: int = _knob("Requests computed in one step.", 64, least=1)
    max_num_batched_tokens: int | None = _knob(
        "Tokens computed in one step: bounds how long one prefill chunk delays running answers. "
        "Default: 512 on CPU, 8192 on CUDA.",
        None, type=int, least=1,
    )  # fmt: skip
    max_num_queued_reqs: int = _knob(
        "Requests that may wait to be started; more get 503 with Retry-After.", 2048, least=1
    )
    spec_method: str = _knob(
        "Guess tokens ahead and verify them in one pass; answers stay the same. ngram: what followed the last tokens "
        "before, in prompt or answer.",
        "none", choices=("none", "ngram"),
    )  # fmt: skip
    spec_tokens: int = _knob("Tokens guessed at most for one answer and step.", 4, least=1)
    spec_max_batch: int = _knob("No guesses while more answers than this grow: then they cost time.", 4, least=1)
    enable_lora: bool = _knob("Accept LoRA adapters, at run time by /v1/load_lora_adapter too.", False)
    max_loras: int = _knob("Adapters in use at once; requests for others wait.", 4, least=1)
    max_lora_rank: int = _knob("Largest rank of an adapter.", 64, least=1)
    lora_modules: tuple[str, ...] = _knob("Adapters to load at start, as name=folder.", (), nargs="+")
    tool_call_parser: str = _knob(
        "Notation of tool calls. auto: the one that the chat template teaches.",
        "auto", choices=("auto", "hermes", "llama3_json", "none"),
    )  # fmt: skip
    reasoning_parser: str = _knob(
        "Tell reasoning apart. auto: when the chat template has <think>.", "auto", choices=("auto", "think", "none")
    )
    sse_keep_alive_interval: float = _knob(
        "Seconds of silence in a stream after which a comment is sent, so that no proxy cuts it; 0 sends none.",
        15.0, least=0,
    )  # fmt: skip
    device: str = _knob("auto takes CUDA when there is one.", "auto", choices=("auto", "cpu", "cuda"))
    dtype: str = _knob(
        "Arithmetic and KV type. auto: float32 on CPU, which has no fast 16-bit path, else the checkpoint's.",
        "auto", choices=("auto", "float32", "bfloat16", "float16"),
    )  # fmt: skip
    tensor_parallel_size: int = _knob(
        "Processes that share the model's matrices and KV heads, one per CUDA device, or on CPU for tests.", 1, least=1
    )
    cuda_graphs: bool = _knob("On CUDA, record decode steps at start and replay them.", True)
    threads: int = _knob(
        "CPU threads of one operation. Default: a quarter of the cores, 1 to 4.", default_threads(), least=1
    )
    health_timeout: float = _knob(
        "Seconds without a sign of life from the engine loop after which /health answers 503.", 60.0, least=0
    )
    log_level: str = _knob("Least severe log lines to write.", "INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))

    def __post_init__(self) -> None:
        for knob in fields(self):
            value, least = getattr(self, knob.name), knob.metadata["least"]
            if least > -math.inf and value is not None and value < least:
                raise SettingsError(f"{flag(knob.name)} must be at least {least}")
        shares, alone = (
            self.kv_cache_fraction is None or 0 < self.kv_cache_fraction <= 1,
            self.tensor_parallel_size == 1,
        )
        for holds, message in (
            (shares, "--kv-cache-fraction must be in (0, 1]"),
            (self.port <= 65535, "--port must be in 0…65535"),
            (
                not self.host_cache_bytes or self.enable_prefix_caching,
                "--host-cache-bytes keeps what the prefix cache evicts; it cannot go with --no-enable-prefix-caching",
            ),
            (not self.host_cache_bytes or alone, "--host-cache-bytes works with --tensor-parallel-size 1 only"),
            (not self.enable_lora or alone, "--enable-lora works with --tensor-parallel-size 1 only"),
            (not self.lora_modules or self.enable_lora, "--lora-modules needs --enable-lora"),
            (all("=" in item for item in self.lora_modules), "--lora-modules takes name=folder"),
            (not self.kv_replay or self.kv_events, "--kv-replay needs --kv-events"),
        ):
            if not holds:
                raise SettingsError(message)

    @property
    def names(self) -> tuple[str, ...]:
        return self.served_model_name or (self.model.resolve().name,)

    @property
    def adapters(self) -> dict[str, str]:
        """Folders by name."""
        return dict(item.split("=", 1) for item in self.lora_modules)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roundhouse-engine", description="OpenAI-compatible server for one model.")
    for knob in fields(EngineSettings):
        options = {"help": knob.metadata["help"], **knob.metadata["options"]}
        if isinstance(knob.default, bool):
            options["action"] = argparse.BooleanOptionalAction
        presence = {"required": True} if knob.default is MISSING else {"default": knob.default}
        parser.add_argument(flag(knob.name), **presence, **options)
    return parser


def parse_settings(argv: Sequence[str]) -> EngineSettings:
    """Raises `SettingsError`; argparse itself exits with 2 on an unknown flag or a malformed value."""
    values = vars(make_parser().parse_args(argv))
    values |= {name: tuple(values[name]) for name in ("served_model_name", "lora_modules")}
    return EngineSettings(**values)
