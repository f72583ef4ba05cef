"""Chat template → prompt text, as the engine would render it; and on to prefix keys.

The template runs in jinja's immutable sandbox with what engines give it: blocks trimmed, loop controls, a transparent
``{% generation %}``, a ``tojson`` that escapes neither HTML nor non-ASCII, ``strftime_now`` (in UTC, the time zone of
our images), ``raise_exception`` and the special tokens as variables. It is compiled once. Whatever a template refuses
is a `RenderError`: no prediction for that request, never an error to the client.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from roundhouse_kv.errors import RenderError
from roundhouse_kv.keys import chain_keys, root_key
from roundhouse_kv.messages import MARK, MESSAGE_RULES, Message, normalise_messages, normalise_tools
from roundhouse_kv.records import Profile
from roundhouse_kv.render_plan import RenderPlans
from roundhouse_kv.text import TextCodec

_CONTINUE: Final = "\ue0b6continue\ue0b6"
_UNPREDICTABLE: Final = frozenset({"chat_template", "documents", "truncate_prompt_tokens", "prompt_embeds"})
_RESERVED: Final = ("messages", "conversation", "tools", "documents", "chat_template", "tokenize")


class Rendered(NamedTuple):
    """``text`` is what can be predicted; not ``complete``: a part that is no text (an image) cut it off.

    ``add_special_tokens``: the tokenizer puts its BOS before it.
    """

    text: str
    complete: bool = True
    add_special_tokens: bool = False


class Renderer:
    """One profile's template. ``clock`` gives Unix seconds. Raises `RenderError` when the template does not compile,
    `UnsupportedTokenizer` for text rules of a newer agent."""

    def __init__(self, profile: Profile, *, clock: Callable[[], float] = time.time) -> None:
        if profile.message_rules not in MESSAGE_RULES:
            raise RenderError(f"message rules {profile.message_rules!r} are not known here")
        self.profile = profile
        self._digest = profile.digest
        self._codec = None if profile.text is None else TextCodec(profile.text)
        try:
            self._template = _environment(clock).from_string(profile.chat_template)
        except jinja2.TemplateError as error:
            raise RenderError(f"chat template does not compile: {error}") from error
        self._plans = RenderPlans(
            profile.chat_template, lambda: _environment(clock), self._run,
            variables=profile.variables, listed=profile.content_format == "openai",
        )  # fmt: skip
        self.known_plans = self._plans.known
        self.encodes_plainly = self._codec is not None and self._codec.plain
        """`encode` is UTF-8 and nothing else."""
        self._globals = dict(self._template.globals)  # jinja copies them for each rendering, from a slow ChainMap

    def planned(self, body: Mapping[str, Any]) -> str | None:
        """The whole prompt of a chat, when its shape has a plan and there is nothing but text in it; the same as
        `chat` gives."""
        text = self._plans.render(body)
        return None if text is None or MARK in text else text

    def chat(self, body: Mapping[str, Any]) -> Rendered:
        """The prompt of a chat completion. Raises `RenderError` when there is no prediction."""
        planned = self._plans.render(body)
        if planned is not None:
            return _cut_mark(planned, False)
        _check_predictable(body)
        template = self.profile.chat_template
        if not template:
            raise RenderError("the profile has no chat template")
        messages = normalise_messages(
            body.get("messages"), listed=self.profile.content_format == "openai", template=template
        )
        generate = bool(body.get("add_generation_prompt", True))
        resume = bool(body.get("continue_final_message", False))
        if generate and resume:
            raise RenderError("continue_final_message and add_generation_prompt exclude each other")
        if resume:
            _mark_end(messages[-1])
        text = self._run(
            messages=messages,
            tools=normalise_tools(body.get("tools")),
            documents=None,
            add_generation_prompt=generate,
            **{**self.profile.variables, **_template_arguments(body)},
        )
        if resume:
            text = _cut_end(text)
        return _cut_mark(text, bool(body.get("add_special_tokens", False)))

    def completion(self, prompt: str, *, add_special_tokens: bool = True) -> Rendered:
        """The prompt of ``/v1/completions``."""
        return Rendered(prompt, add_special_tokens=add_special_tokens)

    def encode(self, rendered: Rendered) -> bytes:
        """The bytes that the prompt's tokens spell. Raises `RenderError` when the profile has no text rules."""
        if self._codec is None:
            raise RenderError(self.profile.reason or "the profile has no text rules")
        encode = self._codec.encode_completion if rendered.add_special_tokens else self._codec.encode
        return encode(rendered.text)

    @property
    def encode_text(self) -> Callable[[str], bytes] | None:
        """`encode` of a plain text; None when the profile has no text rules."""
        return None if self._codec is None else self._codec.encode

    def render(self, body: Mapping[str, Any], path: str) -> Rendered:
        """The prompt of a request to ``…/chat/completions`` or ``…/completions``. Raises `RenderError`."""
        if path.endswith("/chat/completions"):
            return self.chat(body)
        _check_predictable(body)
        prompt = body.get("prompt")
        if not path.endswith("/completions") or not isinstance(prompt, str):
            raise RenderError("only chats and completions of one text have a prediction")
        return self.completion(prompt, add_special_tokens=bool(body.get("add_special_tokens", True)))

    def keys(self, body: Mapping[str, Any], path: str, *, adapter: str = "", cache_salt: str = "") -> list[int]:
        """Prefix keys of a request. Raises `RenderError` when there is no prediction."""
        data = self.encode(self.render(body, path))
        return chain_keys(data, root_key(self._digest, adapter, cache_salt))

    def _run(self, **variables: Any) -> str:
        try:
            template = self._template
            context = Context(template.environment, {**self._globals, **variables}, template.name, template.blocks)
            return "".join(template.root_render_func(context))
        except Exception as error:
            raise RenderError(f"chat template: {type(error).__name__}: {error}") from error


def content_format(template: str) -> str:
    """``openai`` when the template walks over a message's content, else ``string``; vLLM's rule."""
    try:
        tree = _environment(time.time).parse(template)
    except jinja2.TemplateError:
        return "string"
    for loop in tree.find_all(nodes.For):
        for node in (loop.iter, *loop.iter.find_all(nodes.Node)):
            if _names_content(node):
                return "openai"
    return "string"


def _names_content(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name == "content"


def _check_predictable(body: Mapping[str, Any]) -> None:
    for name in _UNPREDICTABLE & body.keys():
        if body[name] is not None:
            raise RenderError(f"the request has {name}")


def _template_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    arguments = body.get("chat_template_kwargs")
    if arguments is None and "reasoning_effort" not in body:
        return {}
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping) or any(name in arguments for name in _RESERVED):
        raise RenderError("chat_template_kwargs is not a plain object of template variables")
    effort = body.get("reasoning_effort")
    extra = {} if effort is None else {"reasoning_effort": effort}
    own = ("add_generation_prompt", "continue_final_message")
    return {**{name: value for name, value in arguments.items() if name not in own}, **extra}


def _mark_end(message: Message) -> None:
    """Put `_CONTINUE` behind the last text of the message that is to go on."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _CONTINUE + " "
        return
    texts = [part for part in content if part["type"] == "text"]
    if not texts:
        raise RenderError("continue_final_message without a text to continue")
    texts[-1]["text"] += _CONTINUE + " "


def _cut_end(text: str) -> str:
    """Up to the mark; where the template trimmed the message, so would it have without the mark."""
    at = text.rfind(_CONTINUE)
    if at < 0:
        raise RenderError("the template drops the message to continue")
    kept = text[:at]
    return kept if text.startswith(" ", at + len(_CONTINUE)) else kept.rstrip()


def _cut_mark(text: str, add_special_tokens: bool) -> Rendered:
    predicted, mark, _ = text.partition(MARK)
    return Rendered(predicted, complete=not mark, add_special_tokens=add_special_tokens)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks what a model said, for training; it renders as its inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(clock: Callable[[], float]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.fromtimestamp(clock(), UTC).strftime(form)
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
