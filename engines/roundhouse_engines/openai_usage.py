"""The ``usage`` of an OpenAI-shaped answer, decoded without building the rest of it."""

from typing import Final

import msgspec


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Counts(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Answer(msgspec.Struct):
    usage: Counts | None = None


decode_answer: Final = msgspec.json.Decoder(Answer).decode
