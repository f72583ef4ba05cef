"""vLLM's HTTP dialect (0.24 and later)."""

from typing import Final

from roundhouse_engines.openai_sse import OpenAiSse

CONTROL_FIELDS: Final = frozenset(
    {
        "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "priority", "data_parallel_rank", "request_id",
        "bootstrap_host", "bootstrap_port", "bootstrap_room", "lora_path", "lora_request", "disaggregated_params",
    }
)  # fmt: skip
"""Scheduling, hand-off and cache-report fields, and the hand-off fields of other engines, which vLLM would ignore."""

CONTROL_HEADERS: Final = frozenset({b"x-data-parallel-rank", b"x-vllm-priority", b"endpoint-load-metrics-format"})

DIALECT = OpenAiSse("vllm", CONTROL_FIELDS, CONTROL_HEADERS)
