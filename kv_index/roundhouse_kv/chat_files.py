"""What a model's files say about rendering its chats. Read by the engine that renders and by the agent that tells
gateways how it does, so that both find the same.
"""

from collections.abc import Mapping
from typing import Any

_VARIABLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def chat_template(jinja: bytes | None, *configs: Mapping[str, Any]) -> str:
    """``jinja``: chat_template.jinja, if there is one; else the default one of chat_template.json or
    tokenizer_config.json, given in this order; else empty.
    """
    if jinja is not None:
        return jinja.decode("utf-8", "replace")
    template = next((config["chat_template"] for config in configs if config.get("chat_template")), "")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else ""


def special_tokens(*configs: Mapping[str, Any]) -> dict[str, str]:
    """Variables for templates. ``configs``: special_tokens_map.json, then tokenizer_config.json, which wins."""
    found: dict[str, str] = {}
    for config in configs:
        for name in _VARIABLES:
            value = config.get(name)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                found[name] = content
    return found
