"""Chat messages to prompt text: vLLM's normalisation of messages, then the shipped template."""

from collections.abc import Sequence
from functools import cache
from typing import Literal

import msgspec
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from roundhouse_sim.errors import bad_request
from roundhouse_sim.model import model_file


class Part(msgspec.Struct):
    """One content part; only text can be simulated."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None


class Rendered(msgspec.Struct, frozen=True):
    """``role`` and ``content`` as the template sees them."""

    role: str
    content: str


def render_chat(
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: dict[str, object],
) -> str:
    """Prompt text. With ``continue_final_message`` it ends inside the last message, ready to be written on.

    Raises:
        ApiError: no messages, a part that is no text, or options that exclude each other.
    """
    if continue_final_message and add_generation_prompt:
        raise bad_request("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    if not messages:
        raise bad_request("messages must not be empty", "messages")
    plain = normalise(messages)
    try:
        text = _template().render(
            {**variables, "messages": [msgspec.structs.asdict(m) for m in plain]},
            add_generation_prompt=add_generation_prompt,
        )
    except (TemplateError, TypeError) as error:
        raise bad_request(f"chat template: {error}", "chat_template_kwargs") from error
    if continue_final_message:
        return cut_after(text, plain[-1].content)
    return text


def normalise(messages: Sequence[Message]) -> list[Rendered]:
    """No content → "", text parts joined by a newline, ``developer`` → ``system``."""
    roles: dict[str, Literal["system"]] = {"developer": "system"}
    return [Rendered(roles.get(m.role, m.role), _text(m)) for m in messages]


def cut_after(text: str, content: str) -> str:
    """``text`` up to the end of its last message's ``content``; trailing blanks stay when the template kept them."""
    bare = content.strip()
    start = text.rindex(bare)
    kept = content.lstrip()
    if text.startswith(kept, start):
        return text[: start + len(kept)]
    return text[: start + len(bare)]


def _text(message: Message) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if part.text is None:
            raise bad_request(f"content part of type {part.type!r}: this model takes text only", "messages")
    return "\n".join(part.text or "" for part in message.content)


@cache
def _template() -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(model_file("chat_template.jinja").decode())
