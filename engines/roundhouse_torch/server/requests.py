"""Request bodies: types, limits and what is not supported. Unknown fields are ignored, as vLLM does."""

import math
import secrets
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from roundhouse_torch.errors import BadRequest, MalformedRequest
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.models.config import GenerationDefaults
from roundhouse_torch.server.structure import Structure, structure_of

MAX_N = 128
MAX_ANSWERS = 1024
"""Prompts × n of one request."""
DEFAULT_COMPLETION_TOKENS = 16
GREEDY_BELOW = 1e-5
MIN_TEMPERATURE = 0.01
"""Colder than this, logits overflow; vLLM has the same two limits."""
MAX_LOGPROBS = 20
MAX_BIAS = 100.0


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What chats and completions have in common. None means: not given."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    seed: int | None = None
    n: int | None = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    priority: int = 0

    @property
    def told_logprobs(self) -> int | None:
        """How many of the likeliest tokens to tell; None: no log-probabilities. Raises `BadRequest`."""
        raise NotImplementedError


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """``messages`` and the fields for the template are read from the raw body by the renderer."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    add_special_tokens: bool = False
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True

    @property
    def told_logprobs(self) -> int | None:
        top = self.top_logprobs or 0
        _require(
            not top or bool(self.logprobs), "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
        )
        _require(
            0 <= top <= MAX_LOGPROBS, f"top_logprobs must be between 0 and {MAX_LOGPROBS}, got {top}.", "top_logprobs"
        )
        return top if self.logprobs else None

    @property
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]
    echo: bool | None = False
    add_special_tokens: bool = True
    logprobs: int | None = None

    @property
    def told_logprobs(self) -> int | None:
        asked = self.logprobs
        _require(
            asked is None or 0 <= asked <= MAX_LOGPROBS,
            f"logprobs must be between 0 and {MAX_LOGPROBS}, got {asked}.",
            "logprobs",
        )
        _require(asked is None or not self.echo, "logprobs of the prompt are not told; leave out echo.", "logprobs")
        return asked

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt as text or token ids. Raises `MalformedRequest` for a list of mixed kinds."""
        return texts_or_ids(self.prompt, "prompt")


def texts_or_ids(given: str | list[str | int | list[int]], field: str) -> list[str | list[int]]:
    """One or several, each as text or token ids. Raises `MalformedRequest` for a list of mixed kinds."""
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    if ids and len(ids) == len(given):
        return [ids]
    several = [item for item in given if not isinstance(item, int)]
    if ids or not several or len({type(item) for item in several}) > 1:
        message = f"{field} must be a text, a list of token ids, or a non-empty list of either"
        raise MalformedRequest(message, f"body.{field}")
    return several


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    add_special_tokens: bool = True
    cache_salt: str | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Of a text, or of a chat when ``messages`` is given."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]
    model: str | None = None


class AdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    lora_name: str = ""
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
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"1 validation error: body: JSON decode error: {error}", "body") from error
    if not isinstance(body, dict):
        raise MalformedRequest("1 validation error: body: an object is expected", "body")
    return body


def parse(body: dict[str, Any], kind: type[Body]) -> Body:
    """Raises `MalformedRequest`, naming the field."""
    try:
        return msgspec.convert(body, kind, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        param = "body" + path.rstrip("`")
        raise MalformedRequest(f"1 validation error: {param}: {text}", param) from error


def refuse_unsupported(body: dict[str, Any]) -> None:
    """Raises `BadRequest` for a field that would be silently wrong to ignore."""
    for name, neutral in NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise BadRequest(f"{name} is not supported by this engine", name)


@dataclass(frozen=True, slots=True)
class OutputRules:
    """How tokens become the client's text. ``ends``: tokens that end an answer and are no text."""

    stops: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    ends: frozenset[int]


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked request: how many answers, how sampled, how shown."""

    n: int
    sampling: Sampling
    rules: OutputRules
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    salt: str
    structure: Structure | None
    adapter: str = ""
    priority: int = 0


def check(request: GenerationRequest, defaults: GenerationDefaults, eos_ids: frozenset[int], vocab_size: int) -> Plan:
    """Raises `BadRequest`."""
    n = 1 if request.n is None else request.n
    _require(1 <= n <= MAX_N, f"n must be between 1 and {MAX_N}, got {n}.", "n")
    _require(
        request.min_tokens >= 0,
        f"min_tokens must be greater than or equal to 0, got {request.min_tokens}.",
        "min_tokens",
    )
    stream = bool(request.stream)
    _require(
        stream or request.stream_options is None,
        "Stream options can only be defined when `stream=True`.",
        "stream_options",
    )
    _require(request.cache_salt != "", "cache_salt must be a non-empty string if provided.", "cache_salt")
    options = request.stream_options or StreamOptions()
    sampling = _sampling(request, defaults, eos_ids, vocab_size)
    return Plan(
        n=n,
        sampling=sampling,
        rules=OutputRules(
            _stops(request.stop), request.include_stop_str_in_output, request.skip_special_tokens, sampling.ends
        ),
        stream=stream,
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
        return_token_ids=bool(request.return_token_ids),
        salt=request.cache_salt or "",
        structure=structure_of(request),
        priority=request.priority,
    )


def answer_tokens(
    asked: int | None, default: int | None, prompt_tokens: int, max_model_len: int, min_tokens: int
) -> int:
    """How many tokens the answer may have: what was asked for, as far as the context allows. Raises `BadRequest`."""
    if asked is not None:
        _require(asked >= 1, f"max_tokens must be at least 1, got {asked}.", "max_tokens")
        _require(
            asked <= max_model_len,
            f"max_tokens={asked} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            "max_tokens",
        )
    _require(prompt_tokens > 0, "The prompt must not be empty.", "prompt")
    _require(
        prompt_tokens < max_model_len,
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
        f"{prompt_tokens} input tokens, which leaves no room for output tokens. "
        "Please reduce the length of the input prompt.",
        "input_tokens",
    )
    wanted = asked if asked is not None else default
    room = max_model_len - prompt_tokens
    allowed = room if wanted is None else min(wanted, room)
    _require(
        min_tokens <= allowed,
        f"min_tokens must be less than or equal to max_tokens={allowed}, got {min_tokens}.",
        "min_tokens",
    )
    return allowed


def _sampling(
    request: GenerationRequest, defaults: GenerationDefaults, eos_ids: frozenset[int], vocab_size: int
) -> Sampling:
    temperature = defaults.temperature if request.temperature is None else request.temperature
    top_p = defaults.top_p if request.top_p is None else request.top_p
    top_k = defaults.top_k if request.top_k is None else request.top_k
    _require(
        temperature >= 0 and math.isfinite(temperature),
        f"temperature must be non-negative, got {temperature}.",
        "temperature",
    )
    _require(0 < top_p <= 1, f"top_p must be in (0, 1], got {top_p}.", "top_p")
    _require(top_k >= -1, f"top_k must be 0 (disable), or at least 1, got {top_k}.", "top_k")
    if temperature > 0:
        temperature = 0.0 if temperature < GREEDY_BELOW else max(temperature, MIN_TEMPERATURE)
    min_p = defaults.min_p if request.min_p is None else request.min_p
    _require(0 <= min_p <= 1, f"min_p must be in [0, 1], got {min_p}.", "min_p")
    stop_ids = frozenset(request.stop_token_ids or ())
    _require(
        all(0 <= id < vocab_size for id in stop_ids), f"stop_token_ids must be in [0, {vocab_size}).", "stop_token_ids"
    )
    seed = secrets.randbits(63) if request.seed is None else request.seed
    _require(-(2**63) <= seed < 2**63, "seed must be a signed 64-bit integer.", "seed")
    return Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=max(top_k, 0),
        seed=seed,
        min_tokens=request.min_tokens,
        eos_ids=frozenset() if request.ignore_eos else eos_ids,
        stop_ids=stop_ids,
        min_p=min_p,
        bias=_bias(request.logit_bias or {}, vocab_size),
        logprobs=request.told_logprobs,
        **_penalties(request, defaults),
    )


def _penalties(request: GenerationRequest, defaults: GenerationDefaults) -> dict[str, float]:
    repetition = defaults.repetition_penalty if request.repetition_penalty is None else request.repetition_penalty
    _require(
        repetition > 0 and math.isfinite(repetition),
        f"repetition_penalty must be greater than zero, got {repetition}.",
        "repetition_penalty",
    )
    found = {"repetition": repetition}
    for name in ("presence", "frequency"):
        found[name] = getattr(request, f"{name}_penalty") or 0.0
        _require(-2 <= found[name] <= 2, f"{name}_penalty must be in [-2, 2], got {found[name]}.", f"{name}_penalty")
    return found


def _bias(given: dict[str, float], vocab_size: int) -> dict[int, float]:
    """Cut to ±100, as OpenAI and vLLM do."""
    for name, value in given.items():
        _require(
            name.isdecimal() and int(name) < vocab_size and not math.isnan(value),
            f"logit_bias must map token ids in [0, {vocab_size}) to numbers, got {name!r}: {value}.",
            "logit_bias",
        )
    return {int(name): max(-MAX_BIAS, min(MAX_BIAS, value)) for name, value in given.items()}


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    _require(all(stops), "stop cannot contain an empty string.", "stop")
    return stops


def _require(holds: bool, message: str, param: str) -> None:
    if not holds:
        raise BadRequest(message, param)
