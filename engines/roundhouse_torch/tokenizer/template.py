"""The model's chat template, rendered by the same rules that gateways use to predict prompts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roundhouse_kv.chat_files import chat_template, special_tokens
from roundhouse_kv.errors import RenderError
from roundhouse_kv.records import Profile
from roundhouse_kv.render import Renderer, content_format

from roundhouse_torch.errors import BadRequest, BrokenModel
from roundhouse_torch.models.config import read_json


class ChatTemplate:
    """``source`` is empty when there is none. Raises `BrokenModel` when it does not compile."""

    def __init__(self, folder: Path) -> None:
        names = ("special_tokens_map.json", "chat_template.json", "tokenizer_config.json")
        tokens, old, config = (read_json(folder / name, optional=True) for name in names)
        jinja = folder / "chat_template.jinja"
        self.source = chat_template(jinja.read_bytes() if jinja.exists() else None, old, config)
        profile = Profile(
            text=None,
            chat_template=self.source,
            content_format="openai" if content_format(self.source) == "openai" else "string",
            variables=special_tokens(tokens, config),
        )
        try:
            self._renderer = Renderer(profile)
        except RenderError as error:
            raise BrokenModel(str(error)) from error

    def render(self, body: Mapping[str, Any]) -> str:
        """The prompt of a chat. Raises `BadRequest`."""
        if not self.source:
            raise BadRequest("this model has no chat template; use /v1/completions", "messages")
        try:
            rendered = self._renderer.chat(body)
        except RenderError as error:
            raise BadRequest(str(error), "messages") from error
        if not rendered.complete:
            raise BadRequest("this model takes text only; the messages have a part that is no text", "messages")
        return rendered.text
