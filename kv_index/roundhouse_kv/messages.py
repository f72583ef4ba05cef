"""What an engine makes of a request's messages and tools before the chat template sees them.

Rules ``vllm-1`` are those of vLLM 0.32 (checked against its ``/tokenize`` over 41 templates): parts become one
string, or a list of parts for templates that walk over ``content``; tool arguments become objects; fields it does not
know are dropped; a developer speaks as the system where the template has no such role.

Where a part that is no text stands, `MARK` is put: what is rendered up to it is all that can be predicted.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from roundhouse_kv.errors import RenderError

MARK: Final = "\ue0b5not-text\ue0b5"
MESSAGE_RULES: Final = ("vllm-1",)
_TEXT_FIELDS: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_PLAIN_ROLES: Final = ("user", "assistant")
_DEVELOPER: Final = re.compile(r"""["']developer["']""")
_BILLING_LINE: Final = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")

Message = dict[str, Any]
Part = dict[str, str]


def normalise_messages(messages: object, *, listed: bool, template: str) -> list[Message]:
    """Messages as the template gets them. ``listed``: its content is a list of parts. Raises `RenderError`."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RenderError("messages is not a list with at least one message")
    knows_developer = _names_developer(template)
    result = [_message(message, listed, knows_developer) for message in messages]
    if not knows_developer and any(message["role"] == "developer" for message in result):
        result = _as_system(result)
    return result


@lru_cache(maxsize=64)
def _names_developer(template: str) -> bool:
    return _DEVELOPER.search(template) is not None


def normalise_tools(tools: object) -> list[Any] | None:
    """Tools with every declared field present, declared ones first. Raises `RenderError`."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise RenderError("tools is not a list")
    return [_tool(tool) for tool in tools]


def _tool(tool: object) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping):
        raise RenderError("a tool is not a function")
    declared = {name: function.get(name) for name in ("name", "description", "parameters")}
    others = {name: value for name, value in tool.items() if name not in ("type", "function")}
    return {"type": tool.get("type", "function"), "function": {**declared, **function}, **others}


def _message(message: object, listed: bool, knows_developer: bool) -> Message:
    if type(message) is dict and len(message) == 2 and not listed and message.get("role") in _PLAIN_ROLES:
        content = message.get("content")
        if type(content) is str:
            return {"role": message["role"], "content": content}  # what the rest comes to for most messages
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RenderError("a message has no role")
    role = message["role"]
    parts, whole = _parts(message.get("content"))
    if role == "system":
        parts = [{**part, "text": _BILLING_LINE.sub("", part["text"])} if "text" in part else part for part in parts]
    result: Message = {"role": role, "content": _content(parts, whole, listed and role != "tool")}
    if role == "assistant":
        _add_assistant(result, message)
    elif role == "tool" and "tool_call_id" in message:
        result["tool_call_id"] = message["tool_call_id"]
    elif role == "developer" and knows_developer:
        result["tools"] = message.get("tools")
    if isinstance(message.get("name"), str):
        result["name"] = message["name"]
    return result


def _parts(content: object) -> tuple[list[Part], bool]:
    """Text parts, `MARK` in front of what is no text, and whether all of it is text."""
    if content is None:
        return [], True
    if isinstance(content, str):
        return [{"type": "text", "text": content}], True
    if not isinstance(content, Sequence):
        raise RenderError("content is neither text nor a list of parts")
    parts: list[Part] = []
    whole = True
    for part in content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
            continue
        if not isinstance(part, Mapping):
            raise RenderError("a content part is not an object")
        field = _TEXT_FIELDS.get(str(part.get("type")))
        if field is None:
            whole = False
            parts.append({"type": "text", "text": MARK})
            parts.append({"type": str(part.get("type", "")).removesuffix("_url").removeprefix("input_")})
        elif isinstance(part.get(field), str):
            parts.append({"type": "text", "text": part[field]})
    return parts, whole


def _content(parts: list[Part], whole: bool, listed: bool) -> str | list[Part]:
    """In a string, engines put the placeholders of what is no text first, so nothing of it can be predicted."""
    if listed:
        return parts
    return "\n".join(part["text"] for part in parts) if whole else MARK


def _add_assistant(result: Message, message: Mapping[str, Any]) -> None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise RenderError("tool_calls is not a list")
    if calls:
        result["tool_calls"] = [_call(call) for call in calls]
    if message.get("reasoning") is not None:
        result["reasoning"] = result["reasoning_content"] = message["reasoning"]


def _call(call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise RenderError("a tool call has no function")
    arguments = function.get("arguments")
    if not isinstance(arguments, (dict, list)):
        try:
            arguments = json.loads(arguments) if arguments else {}
        except (TypeError, ValueError, RecursionError) as error:
            raise RenderError(f"a tool call's arguments are not JSON: {error}") from error
    return {**call, "function": {**function, "arguments": arguments}}


def _as_system(messages: list[Message]) -> list[Message]:
    """Developers become the system; if one then stands behind another message, all become one in front."""
    renamed = [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]
    if all(message["role"] != "system" for message in renamed[1:]):
        return renamed
    texts = [_text(message["content"]) for message in renamed if message["role"] == "system"]
    merged: Message = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _text(content: str | list[Part]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")
