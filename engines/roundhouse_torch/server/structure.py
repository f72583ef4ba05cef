"""What an answer must look like, in the spellings of OpenAI and vLLM, as one llguidance grammar.

``response_format``; ``structured_outputs`` with ``json``, ``json_object``, ``regex``, ``choice`` or ``grammar`` (Lark
or GBNF); the older ``guided_*``. The engine compiles the grammar; what it cannot compile is refused with 400 under the
name of the field.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roundhouse_torch.errors import BadRequest

if TYPE_CHECKING:
    from roundhouse_torch.server.requests import GenerationRequest

_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_OPEN = 'think[suffix="</think>"]: /(?s:.*)/\n'
_BEGUN = "start: think GAP @answer\nGAP: /\\s{0,2}/\n" + _OPEN
_OPTIONAL = "start: (think GAP)? @answer\nGAP: /\\s{0,2}/\n" + _OPEN.replace("/(", "/<think>(")
THINKING = {"begun": _BEGUN, "optional": _OPTIONAL}
"""What may come before the answer of a model that thinks: the prompt has opened the thought, or the model may."""


@dataclass(frozen=True, slots=True)
class Structure:
    """``field`` asked for it."""

    field: str
    grammar: Mapping[str, Any]

    def after(self, thinking: str) -> str:
        """The whole grammar for the engine; ``thinking``: a key of `THINKING`, or empty."""
        grammars = [dict(self.grammar, name="answer")]
        if thinking:
            grammars.insert(0, {"lark_grammar": THINKING[thinking]})
        return json.dumps({"grammars": grammars})


def structure_of(request: "GenerationRequest") -> Structure | None:
    """Raises `BadRequest` for contradictions and unknown kinds."""
    asked: list[tuple[str, str, Any]] = []
    if request.response_format is not None:
        asked += _response_format(request.response_format)
    for kind, value in (request.structured_outputs or {}).items():
        if kind in _KINDS and value is not None:
            asked.append((f"structured_outputs.{kind}", kind, value))
    for kind in ("json", "regex", "choice", "grammar"):
        value = getattr(request, f"guided_{kind}")
        if value is not None:
            asked.append((f"guided_{kind}", kind, value))
    if request.structured_outputs is not None and not any(field.startswith("str") for field, _, _ in asked):
        raise BadRequest(f"structured_outputs must have one of {', '.join(_KINDS)}", "structured_outputs")
    if len(asked) > 1:
        raise BadRequest(f"only one of {' and '.join(field for field, _, _ in asked)} can be given", asked[1][0])
    return Structure(asked[0][0], _grammar(*asked[0])) if asked else None


def _response_format(given: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    match given.get("type"):
        case "text":
            return []
        case "json_object":
            return [("response_format", "json_object", True)]
        case "json_schema":
            outer = given.get("json_schema")
            if not isinstance(outer, Mapping) or not isinstance(outer.get("schema"), Mapping):
                raise BadRequest("response_format.json_schema must have a schema", "response_format")
            return [("response_format", "json", outer["schema"])]
        case other:
            raise BadRequest(
                f"response_format.type must be text, json_object or json_schema, got {other!r}", "response_format"
            )


def _grammar(field: str, kind: str, value: Any) -> Mapping[str, Any]:
    match kind, value:
        case "json_object", True:
            return {"json_schema": {"type": "object"}}
        case "json", Mapping():
            return {"json_schema": value}
        case "json", str():
            try:
                return _grammar(field, kind, json.loads(value))
            except ValueError as error:
                raise BadRequest(f"{field} is no JSON: {error}", field) from error
        case "regex", str():
            from llguidance import regex_to_lark

            return {"lark_grammar": f"start: /{regex_to_lark(value)}/"}
        case "choice", [*choices] if choices and all(isinstance(choice, str) and choice for choice in choices):
            return {"lark_grammar": "start: " + " | ".join(json.dumps(choice) for choice in choices)}
        case "grammar", str():
            return {"lark_grammar": _lark(field, value)}
    raise BadRequest(f"{field} has a value that it cannot have", field)


def _lark(field: str, text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:  # the converter raises nothing narrower
        raise BadRequest(f"{field}: {error}", field) from error
