"""Tool calls: what a request asks for, and the two notations in which models write them.

* ``hermes`` (Hermes, Qwen 2.5 and 3): ``<tool_call>`` {"name": …, "arguments": …} ``</tool_call>``, maybe after text;
* ``llama3_json``: the answer is {"name": …, "parameters": …}, several with ``;`` between.

A forced call (``required`` or a named function) is written under a grammar of the same notation, so that one parser
reads both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from roundhouse_torch.errors import require
from roundhouse_torch.server.structure import Structure

NOTATIONS = ("hermes", "llama3_json")
_ARGUMENTS = {"hermes": "arguments", "llama3_json": "parameters"}


def notation_of(template: str) -> str:
    """The notation that a chat template teaches; empty when it knows of no tools."""
    if "<tool_call>" in template:
        return "hermes"
    return "llama3_json" if "tools" in template and '"parameters"' in template else ""


class Function(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, frozen=True):
    """Of ``tools``; and ``tool_choice`` when it names one."""

    function: Function
    type: Literal["function"] = "function"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """``forced``: names of the functions of which one must be called; ``named``: the client named it."""

    notation: str
    forced: tuple[str, ...]
    named: bool
    parallel: bool
    schemas: Mapping[str, Mapping[str, Any]]

    @property
    def structure(self) -> Structure | None:
        """Only `forced` ones, as often as allowed."""
        if not self.forced:
            return None
        single = self.named or not self.parallel
        call = " | ".join(f"fn_{index}" for index in range(len(self.forced)))
        if self.notation == "hermes":
            start = "start: call\n" if single else 'start: call ("\\n" call)*\n'
            start += f'call: "<tool_call>\\n" ({call}) "\\n</tool_call>"\n'
        else:
            start = f"start: {call}\n" if single else f'start: ({call}) ("; " ({call}))*\n'
        rules = [f"fn_{index}: %json {json.dumps(self._call(name))}\n" for index, name in enumerate(self.forced)]
        return Structure("tools", {"lark_grammar": start + "".join(rules)})

    def _call(self, name: str) -> dict[str, Any]:
        arguments = _ARGUMENTS[self.notation]
        return {
            "type": "object",
            "properties": {"name": {"const": name}, arguments: self.schemas[name]},
            "required": ["name", arguments],
            "additionalProperties": False,
            "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
        }


def tool_use(tools: Sequence[Tool], choice: str | Tool, parallel: bool, notation: str) -> ToolUse | None:
    """None: answer in text. Raises `BadRequest`."""
    require(bool(tools) or choice in ("none", "auto"), "tool_choice needs tools", "tool_choice")
    if not tools or choice == "none":
        return None
    require(
        bool(notation),
        "this model's chat template knows of no tools; serve it with --tool-call-parser "
        f'{" or ".join(NOTATIONS)}, or set tool_choice to "none"',
        "tool_choice",
    )
    schemas = {tool.function.name: tool.function.parameters or {"type": "object"} for tool in tools}
    named = choice.function.name if isinstance(choice, Tool) else ""
    require(not named or named in schemas, f"tool_choice must name one of {', '.join(schemas)}", "tool_choice")
    forced = (named,) if named else tuple(schemas) if choice == "required" else ()
    return ToolUse(notation, forced, bool(named), parallel, schemas)
