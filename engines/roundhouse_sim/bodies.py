"""Request bodies → `Generate`: what is to be written, for whom, and how it is to be sent."""

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from roundhouse_sim.chat import Message, render_chat
from roundhouse_sim.errors import ApiError, bad_request
from roundhouse_sim.settings import Settings
from roundhouse_sim.tokens import Tokens, encode, from_ids

Prompt = str | list[str | int | list[int]]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct, kw_only=True):
    """What chat and text completions have in common; unknown fields are ignored, as vLLM does."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: float | None = None
    ignore_eos: bool = False
    cache_salt: str | None = None
    return_token_ids: bool | None = None


class ChatBody(Body, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, object] | None = None


class CompletionBody(Body, kw_only=True):
    prompt: Prompt


class TokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, object] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Generate:
    """One inference request, checked. ``max_tokens`` None: the answer ends by itself, if ``ends`` allows."""

    chat: bool
    model: str
    prompts: tuple[Tokens, ...]
    n: int
    max_tokens: int | None
    ends: bool
    stop: tuple[str, ...]
    seed: int
    salt: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool


B = TypeVar("B")


def decode_body(kind: type[B], data: bytes) -> B:
    """Raises `ApiError` 400 with vLLM's error type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"1 validation error: {error}", kind="Bad Request") from error


def parse_chat(data: bytes, settings: Settings) -> Generate:
    body = decode_body(ChatBody, data)
    text = render_chat(
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs or {},
    )
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _generate(body, (encode(text),), limit, settings, chat=True)


def parse_completion(data: bytes, settings: Settings) -> Generate:
    body = decode_body(CompletionBody, data)
    limit = 16 if body.max_tokens is None else body.max_tokens
    return _generate(body, _prompts(body.prompt), limit, settings, chat=False)


def check_model(name: str | None, settings: Settings) -> str:
    """The name to answer with. Raises `ApiError` 404."""
    if not name:
        return settings.served_names[0]
    if name not in settings.served_names:
        aliases = ", ".join(settings.served_names)
        message = f"The model `{name}` does not exist. Valid aliases: {aliases}."
        raise ApiError(404, "NotFoundError", message, "model")
    return name


def tokenize_prompt(body: TokenizeBody) -> Tokens:
    """Raises `ApiError` 400 unless exactly one of ``prompt`` and ``messages`` is there."""
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("1 validation error: exactly one of `prompt` and `messages` is needed", kind="Bad Request")
    if body.prompt is not None:
        return encode(body.prompt)
    text = render_chat(
        body.messages or [],
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs or {},
    )
    return encode(text)


def detokenize_prompt(body: DetokenizeBody) -> Tokens:
    return _from_ids(body.tokens)


def _generate(
    body: Body, prompts: tuple[Tokens, ...], max_tokens: int | None, settings: Settings, *, chat: bool
) -> Generate:
    model = check_model(body.model, settings)
    _check(body, max_tokens, settings)
    for prompt in prompts:
        if not prompt:
            raise bad_request("the prompt has no tokens", "prompt")
        if len(prompt) >= settings.context_limit:
            raise bad_request(
                f"This model's maximum context length is {settings.context_limit} tokens. However, your prompt "
                f"contains {len(prompt)} input tokens. Please reduce the length of the input prompt.",
                "input_tokens",
            )
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    options = body.stream_options or StreamOptions()
    include_usage = bool(options.include_usage)
    return Generate(
        chat=chat,
        model=model,
        prompts=prompts,
        n=1 if body.n is None else body.n,
        max_tokens=max_tokens,
        ends=not body.ignore_eos and max_tokens is None,
        stop=tuple(filter(None, stop)),
        seed=body.seed or 0,
        salt=body.cache_salt or "",
        stream=bool(body.stream),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
    )


def _check(body: Body, max_tokens: int | None, settings: Settings) -> None:
    if max_tokens is not None and max_tokens < 1:
        raise bad_request(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens")
    if max_tokens is not None and max_tokens > settings.context_limit:
        raise bad_request(
            f"max_tokens={max_tokens} cannot be greater than max_model_len={settings.context_limit}. "
            "Please request fewer output tokens.",
            "max_tokens",
        )
    if body.n is not None and not 1 <= body.n <= 128:
        raise bad_request(f"n must be between 1 and 128, got {body.n}.", "n")
    if body.temperature is not None and body.temperature < 0:
        raise bad_request(f"temperature must be non-negative, got {body.temperature}.", "temperature")
    if body.seed is not None and not -(2**63) <= body.seed < 2**63:
        raise bad_request("seed must fit 64 bits", "seed")
    if body.stream_options is not None and not body.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", kind="Bad Request")
    if body.cache_salt == "":
        raise bad_request("Parameter 'cache_salt' must be a non-empty string if provided.", kind="Bad Request")


def _prompts(prompt: Prompt) -> tuple[Tokens, ...]:
    """One text, several texts, one list of token ids, or several such lists."""
    if isinstance(prompt, str):
        return (encode(prompt),)
    if not prompt:
        raise bad_request("prompt must not be an empty list", "prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return (_from_ids(ids),)
    if ids:
        raise bad_request("prompt must not mix token ids with texts or lists", "prompt")
    return tuple(
        encode(item) if isinstance(item, str) else _from_ids(item) for item in prompt if not isinstance(item, int)
    )


def _from_ids(ids: list[int]) -> Tokens:
    try:
        return from_ids(ids)
    except ValueError as error:
        raise bad_request(str(error), "prompt") from error
