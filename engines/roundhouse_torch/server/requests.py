"""Request bodies: types, limits and what is not supported. Unknown fields are ignored, as vLLM does."""

import math
import secrets
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from roundhouse_torch.errors import BadRequest, MalformedRequest
from roundhouse_torch.messages.command import Sampling
from roundhouse_torch.models.config import GenerationDefaults

MAX_N = 128
MAX_ANSWERS = 1024
"""Prompts × n of one request."""
DEFAULT_COMPLETION_TOKENS = 16
GREEDY_BELOW = 1e-5
MIN_TEMPERATURE = 0.01
"""Colder than this, logits overflow; vLLM has the same two limits."""


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


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """``messages`` and the fields for the template are read from the raw body by the renderer."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    add_special_tokens: bool = False

    @property
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]
    echo: bool | None = False
    add_special_tokens: bool = True

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt as text or token ids. Raises `MalformedRequest` for a list of mixed kinds."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [item for item in self.prompt if isinstance(item, int)]
        if ids and len(ids) == len(self.prompt):
            return [ids]
        several = [item for item in self.prompt if not isinstance(item, int)]
        if ids or not several or len({type(item) for item in several}) > 1:
            raise MalformedRequest(
                "prompt must be a text, a list of token ids, or a non-empty list of either", "body.prompt"
            )
        return several


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


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
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
    if body.get("tools") and body.get("tool_choice", "auto") != "none":
        raise BadRequest('tool calls are not parsed by this engine; set tool_choice to "none"', "tool_choice")


@dataclass(frozen=True, slots=True)
class OutputRules:
    """How tokens become the client's text."""

    stops: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool


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
    return Plan(
        n=n,
        sampling=_sampling(request, defaults, eos_ids, vocab_size),
        rules=OutputRules(_stops(request.stop), request.include_stop_str_in_output, request.skip_special_tokens),
        stream=stream,
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
        return_token_ids=bool(request.return_token_ids),
        salt=request.cache_salt or "",
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
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    _require(all(stops), "stop cannot contain an empty string.", "stop")
    return stops


def _require(holds: bool, message: str, param: str) -> None:
    if not holds:
        raise BadRequest(message, param)
