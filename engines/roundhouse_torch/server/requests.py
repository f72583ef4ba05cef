"""Request bodies: types, limits and what is not supported. Unknown fields are ignored, as vLLM does; null means: not
given. Types and bounds stand with the fields and are checked by msgspec; `check` adds what takes the model to judge.
"""

import dataclasses
import math
import secrets
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from roundhouse_torch.errors import MalformedRequest, require
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.models.config import GenerationDefaults
from roundhouse_torch.server.structure import Format, Structure, StructuredOutputs, structure_of
from roundhouse_torch.server.tools import Tool

MAX_ANSWERS = 1024
"""Prompts × n of one request."""
DEFAULT_COMPLETION_TOKENS = 16
GREEDY_BELOW = 1e-5
MIN_TEMPERATURE = 0.01
"""Colder than this, logits overflow; vLLM has the same two limits."""
MAX_BIAS = 100.0
MOST = sys.float_info.max

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Told = Annotated[int, Meta(ge=0, le=20)]
PromptInput = str | list[str | int | list[int]]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What chats and completions have in common. None: the model's default, or what the context allows."""

    model: str | None = None
    max_tokens: Positive | None = None
    min_tokens: Count = 0
    temperature: Annotated[float, Meta(ge=0, le=MOST)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=MOST)] | None = None
    logit_bias: dict[str, float] = {}
    response_format: Format | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[Text] | None = None
    guided_grammar: str | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    stop: Text | list[Text] = []
    stop_token_ids: list[Count] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    cache_salt: Text = ""
    priority: int = 0

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def told_logprobs(self) -> int | None:
        """How many of the likeliest tokens to tell; None: no log-probabilities. Raises `BadRequest`."""
        raise NotImplementedError


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """``messages`` and the fields for the template are read from the raw body by the renderer."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Positive | None = None
    add_special_tokens: bool = False
    logprobs: bool = False
    top_logprobs: Told = 0
    tools: list[Tool] = []
    tool_choice: Literal["auto", "none", "required"] | Tool = "auto"
    parallel_tool_calls: bool = True

    @property
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def told_logprobs(self) -> int | None:
        require(self.logprobs or not self.top_logprobs, "top_logprobs needs logprobs", "top_logprobs")
        return self.top_logprobs if self.logprobs else None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    prompt: PromptInput
    echo: bool = False
    add_special_tokens: bool = True
    logprobs: Told | None = None

    @property
    def told_logprobs(self) -> int | None:
        require(self.logprobs is None or not self.echo, "logprobs with echo are not supported", "logprobs")
        return self.logprobs


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    input: PromptInput
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    add_special_tokens: bool = True
    cache_salt: Text = ""


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Of a text, or of a chat when ``messages`` is given. None: special tokens for a text, none for a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]
    model: str | None = None


class AdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    lora_name: Text
    lora_path: str = ""
    load_inplace: bool = False


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logits_processors": ([],),
}
"""Fields that would change the answer and are not implemented, with the values that change nothing (besides null)."""

Body = TypeVar("Body", bound=msgspec.Struct)


def parse_json(data: bytes) -> dict[str, Any]:
    """Raises `MalformedRequest`."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"1 validation error: body: {error}", "body") from error


def parse(body: dict[str, Any], kind: type[Body]) -> Body:
    """Raises `MalformedRequest`, naming the field."""
    try:
        return msgspec.convert({name: value for name, value in body.items() if value is not None}, kind, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        where = path.rstrip("`")
        raise MalformedRequest(
            f"1 validation error: {where or 'body'}: {text}", where.split("[")[0] or "body"
        ) from error


def texts_or_ids(given: PromptInput, field: str) -> list[str | list[int]]:
    """One or several, each as text or token ids. Raises `MalformedRequest` for a list of mixed kinds."""
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    several = [item for item in given if not isinstance(item, int)]
    if ids and not several:
        return [ids]
    if ids or len({type(item) for item in several}) != 1:
        raise MalformedRequest(f"{field} must be a text, a list of token ids, or a non-empty list of either", field)
    return several


def refuse_unsupported(body: dict[str, Any]) -> None:
    """Raises `BadRequest` for a field that would be silently wrong to ignore."""
    for name, neutral in NEUTRAL.items():
        value = body.get(name)
        require(value is None or value in neutral, f"{name} is not supported by this engine", name)


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked request: how it is sampled, and what else its answers depend on. ``stops``: strings that end one."""

    asked: GenerationRequest
    sampling: Sampling
    stops: tuple[str, ...]
    structure: Structure | None
    skip_special_tokens: bool
    adapter: str = ""


def check(request: GenerationRequest, defaults: GenerationDefaults, eos_ids: frozenset[int], vocab_size: int) -> Plan:
    """Raises `BadRequest`."""
    require(request.stream or request.stream_options is None, "stream_options need stream", "stream_options")
    return Plan(
        asked=request,
        sampling=_sampling(request, defaults, eos_ids, vocab_size),
        stops=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop),
        structure=structure_of(request),
        skip_special_tokens=request.skip_special_tokens,
    )


def answer_tokens(
    asked: int | None, default: int | None, prompt_tokens: int, max_model_len: int, min_tokens: int
) -> int:
    """How many tokens the answer may have: what was asked for, as far as the context allows. Raises `BadRequest`."""
    require(
        asked is None or asked <= max_model_len,
        f"max_tokens={asked} cannot be greater than max_model_len={max_model_len}. Please request fewer output tokens.",
        "max_tokens",
    )
    require(prompt_tokens > 0, "The prompt must not be empty.", "prompt")
    require(
        prompt_tokens < max_model_len,
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
        f"{prompt_tokens} input tokens, which leaves no room for output tokens. "
        "Please reduce the length of the input prompt.",
        "input_tokens",
    )
    room = max_model_len - prompt_tokens
    wanted = asked if asked is not None else default
    allowed = room if wanted is None else min(wanted, room)
    require(min_tokens <= allowed, f"min_tokens must be at most max_tokens={allowed}, got {min_tokens}", "min_tokens")
    return allowed


def _sampling(
    request: GenerationRequest, defaults: GenerationDefaults, eos_ids: frozenset[int], vocab_size: int
) -> Sampling:
    names = [field.name for field in dataclasses.fields(defaults)]
    asked = {name: value for name in names if (value := getattr(request, name)) is not None}
    chosen = dataclasses.replace(defaults, **asked)
    stop_ids = frozenset(request.stop_token_ids)
    require(max(stop_ids, default=0) < vocab_size, f"stop_token_ids must be in [0, {vocab_size})", "stop_token_ids")
    greedy = chosen.temperature < GREEDY_BELOW
    return Sampling(
        temperature=0.0 if greedy else max(chosen.temperature, MIN_TEMPERATURE),
        top_p=chosen.top_p,
        top_k=max(chosen.top_k, 0),
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        min_tokens=request.min_tokens,
        eos_ids=frozenset() if request.ignore_eos else eos_ids,
        stop_ids=stop_ids,
        min_p=chosen.min_p,
        presence=request.presence_penalty,
        frequency=request.frequency_penalty,
        repetition=chosen.repetition_penalty,
        bias=_bias(request.logit_bias, vocab_size),
        logprobs=request.told_logprobs,
    )


def _bias(given: dict[str, float], vocab_size: int) -> dict[int, float]:
    """Cut to ±100, as OpenAI and vLLM do."""
    for name, value in given.items():
        require(
            name.isdecimal() and int(name) < vocab_size and not math.isnan(value),
            f"logit_bias must map token ids in [0, {vocab_size}) to numbers, got {name!r}: {value}.",
            "logit_bias",
        )
    return {int(name): max(-MAX_BIAS, min(MAX_BIAS, value)) for name, value in given.items()}
