"""The model's chat template, rendered by the same rules that gateways use to predict prompts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from roundhouse_kv.errors import RenderError
from roundhouse_kv.records import Profile
from roundhouse_kv.render import Renderer, content_format

from roundhouse_torch.errors import BadRequest, BrokenModel
from roundhouse_torch.models.config import read_json

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_template(folder: Path) -> str:
    """``chat_template.jinja``, else the default one of ``tokenizer_config.json``, else empty."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = read_json(folder / "tokenizer_config.json", optional=True).get("chat_template") or ""
    if isinstance(template, list):
        named = {str(item.get("name")): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default") or ""
    return str(template)


def special_tokens(folder: Path) -> dict[str, str]:
    """Variables that templates may use."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = read_json(folder / name, optional=True)
        for token in _SPECIAL_TOKENS:
            value = values.get(token)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                found[token] = content
    return found


class ChatTemplate:
    """Raises `BrokenModel` when the template does not compile."""

    def __init__(self, folder: Path) -> None:
        template = read_template(folder)
        profile = Profile(
            text=None,
            chat_template=template,
            content_format=cast(Literal["string", "openai"], content_format(template)),
            variables=special_tokens(folder),
        )
        self._absent = not template
        self.source = template
        try:
            self._renderer = Renderer(profile)
        except RenderError as error:
            raise BrokenModel(str(error)) from error

    def render(self, body: Mapping[str, Any]) -> str:
        """The prompt of a chat. Raises `BadRequest`."""
        if self._absent:
            raise BadRequest("this model has no chat template; use /v1/completions", "messages")
        try:
            rendered = self._renderer.chat(body)
        except RenderError as error:
            raise BadRequest(str(error), "messages") from error
        if not rendered.complete:
            raise BadRequest("this model takes text only; the messages have a part that is no text", "messages")
        return rendered.text
