"""The simulator's HTTP dialect: vLLM's shapes, so that what works on the simulator works on an engine."""

from roundhouse_engines.openai_sse import OpenAiSse
from roundhouse_engines.vllm.dialect import CONTROL_FIELDS, CONTROL_HEADERS

DIALECT = OpenAiSse("sim", CONTROL_FIELDS, CONTROL_HEADERS)
