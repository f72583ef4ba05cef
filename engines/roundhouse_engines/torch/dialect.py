"""The bundled engine's HTTP dialect: vLLM's shapes, and the same fields kept from clients."""

from roundhouse_engines.openai_sse import OpenAiSse
from roundhouse_engines.vllm.dialect import CONTROL_FIELDS, CONTROL_HEADERS

DIALECT = OpenAiSse("torch", CONTROL_FIELDS, CONTROL_HEADERS)
