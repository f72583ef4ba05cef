"""The simulator's settings, parsed once in ``main()``."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field

from roundhouse_sim.cost import CostModel
from roundhouse_sim.errors import BadFault, BadSettings
from roundhouse_sim.faults import Fault, parse_fault_option
from roundhouse_sim.scheduler import Limits


@dataclass(frozen=True, slots=True)
class Settings:
    """Fields are documented by their options' help. 0 stands for "no limit" or "off" where the help says so."""

    served_names: tuple[str, ...] = ("sim",)
    host: str = "127.0.0.1"
    port: int = 8000
    kv_events: str = ""
    kv_replay: str = ""
    kv_buffer_steps: int = 10_000
    shutdown_timeout: float = 0.0
    kv_tokens: int = 1_200_000
    block_size: int = 16
    max_model_len: int = 131_072
    max_queued: int = 0
    stream_interval: int = 1
    answer_tokens: int = 128
    speedup: float = 1.0
    load_seconds: float = 0.0
    fail_start: str = ""
    limits: Limits = field(default_factory=Limits)
    cost: CostModel = field(default_factory=CostModel)
    faults: tuple[Fault, ...] = ()
    log_level: str = "INFO"
    dump_model: str = ""

    def __post_init__(self) -> None:
        positive = {
            "--block-size": self.block_size, "--max-model-len": self.max_model_len, "--speedup": self.speedup,
            "--stream-interval": self.stream_interval, "--max-num-seqs": self.limits.sequences,
            "--max-num-batched-tokens": self.limits.step_tokens, "--answer-tokens": self.answer_tokens,
            "--step-seconds": self.cost.step_s,
        }  # fmt: skip
        for option, value in positive.items():
            if not value > 0:
                raise BadSettings(f"{option} must be greater than 0, got {value}")
        if self.kv_tokens < self.block_size:
            raise BadSettings(f"--kv-tokens {self.kv_tokens} is less than one block of --block-size {self.block_size}")

    @property
    def blocks(self) -> int:
        return self.kv_tokens // self.block_size

    @property
    def context_limit(self) -> int:
        """Most tokens of prompt and answer together: what was asked for, as far as the cache can hold it."""
        return min(self.max_model_len, self.blocks * self.block_size)


def parse_settings(argv: Sequence[str] | None = None) -> Settings:
    """Raises `BadSettings`; argparse itself exits with 2 on an unknown option."""
    options = _parser().parse_args(argv)
    try:
        faults = tuple(parse_fault_option(text) for text in options.fault)
    except BadFault as error:
        raise BadSettings(str(error)) from error
    cost = CostModel(
        step_s=options.step_seconds,
        prefill_token_s=options.prefill_token_seconds,
        attention_s=options.attention_seconds,
        decode_context_s=options.decode_context_seconds,
        decode_sequence_s=options.decode_sequence_seconds,
    )
    return Settings(
        served_names=tuple(options.served_model_name),
        host=options.host,
        port=options.port,
        kv_events=options.kv_events,
        kv_replay=options.kv_replay,
        kv_buffer_steps=options.kv_buffer_steps,
        shutdown_timeout=options.shutdown_timeout,
        kv_tokens=options.kv_tokens,
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        max_queued=options.max_num_queued_reqs,
        stream_interval=options.stream_interval,
        answer_tokens=options.answer_tokens,
        speedup=options.speedup,
        load_seconds=options.load_seconds,
        fail_start=options.fail_start,
        limits=Limits(step_tokens=options.max_num_batched_tokens, sequences=options.max_num_seqs),
        cost=cost,
        faults=faults,
        log_level=options.log_level,
        dump_model=options.dump_model,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roundhouse-sim",
        description="An engine without a model: OpenAI API, vLLM's metrics and KV events, time from a cost model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    limits, cost = Limits(), CostModel()
    add("--served-model-name", nargs="+", default=["sim"], help="model ids that are answered; the first is reported")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=8000, help="port to listen on, 0 = any; the chosen one is logged")
    add("--kv-events", default="", help="ZMQ endpoint to publish KV events on, empty = off")
    add("--kv-replay", default="", help="ZMQ endpoint for replay and snapshot requests, empty = off")
    add("--kv-buffer-steps", type=int, default=10_000, help="batches kept for replay")
    add("--shutdown-timeout", type=float, default=0.0, help="seconds that requests get to finish after SIGTERM")
    add("--kv-tokens", type=int, default=1_200_000, help="size of the KV cache in tokens")
    add("--block-size", type=int, default=16, help="tokens per KV block")
    add("--max-model-len", type=int, default=131_072, help="most tokens of prompt and answer together")
    add("--max-num-seqs", type=int, default=limits.sequences, help="most sequences that run at once")
    add("--max-num-batched-tokens", type=int, default=limits.step_tokens, help="token budget of one step")
    add("--max-num-queued-reqs", type=int, default=0, help="most requests in flight, beyond it 503; 0 = no limit")
    add("--stream-interval", type=int, default=1, help="tokens per streamed event; the first comes alone")
    add("--answer-tokens", type=int, default=128, help="mean length of answers to requests without max_tokens")
    add("--speedup", type=float, default=1.0, help="how many seconds of engine time pass per second")
    add("--step-seconds", type=float, default=cost.step_s, help="fixed part of a step")
    add("--prefill-token-seconds", type=float, default=cost.prefill_token_s, help="per prefill token")
    add("--attention-seconds", type=float, default=cost.attention_s, help="per prefill token and context token")
    add(
        "--decode-context-seconds",
        type=float,
        default=cost.decode_context_s,
        help="per context token decoded over",
    )
    add("--decode-sequence-seconds", type=float, default=cost.decode_sequence_s, help="per decoding sequence")
    add("--load-seconds", type=float, default=0.0, help="seconds of pretended loading before the port opens")
    add("--fail-start", default="", metavar="MESSAGE", help="exit 1 after loading, MESSAGE the last line of stderr")
    add("--fault", action="append", default=[], metavar="KIND[,FIELD=VALUE…]", help="arm a fault; may be repeated")
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="least level that is logged")
    add(
        "--dump-model", default="", metavar="DIR", help="write the model's files (tokenizer, template, config) and exit"
    )
    return parser
