"""What an answer must look like, in the spellings of OpenAI and vLLM, as one llguidance grammar.

``response_format``; ``structured_outputs`` with ``json``, ``json_object``, ``regex``, ``choice`` or ``grammar`` (Lark
or GBNF); the older ``guided_*``. The engine compiles the grammar; what it cannot compile is refused with 400 under the
name of the field.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from roundhouse_torch.errors import BadRequest, require

if TYPE_CHECKING:
    from roundhouse_torch.server.requests import GenerationRequest

_OPEN = 'think[suffix="</think>"]: /(?s:.*)/\n'
_BEGUN = "start: think GAP @answer\nGAP: /\\s{0,2}/\n" + _OPEN
_OPTIONAL = "start: (think GAP)? @answer\nGAP: /\\s{0,2}/\n" + _OPEN.replace("/(", "/<think>(")
THINKING = {"begun": _BEGUN, "optional": _OPTIONAL}
"""What may come before the answer of a model that thinks: the prompt has opened the thought, or the model may."""
NOT_GIVEN = (None, False)
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]


class Schema(msgspec.Struct, frozen=True):
    schema: dict[str, Any]


class Format(msgspec.Struct, frozen=True):
    """OpenAI's ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """One of them."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None


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
    """Raises `BadRequest` for contradictions and values that cannot be."""
    given = request.structured_outputs
    kinds = StructuredOutputs.__struct_fields__
    found = [(f"structured_outputs.{kind}", kind, getattr(given, kind)) for kind in kinds if given is not None]
    some = given is None or any(value not in NOT_GIVEN for _, _, value in found)
    require(some, f"structured_outputs must have one of {', '.join(kinds)}", "structured_outputs")
    found += [(f"guided_{kind}", kind, getattr(request, f"guided_{kind}", None)) for kind in kinds]
    form = request.response_format
    if form is not None and form.type == "json_schema":
        require(form.json_schema is not None, "response_format.json_schema must have a schema", "response_format")
        found.append(("response_format", "json", form.json_schema and form.json_schema.schema))
    elif form is not None:
        found.append(("response_format", "json_object", form.type == "json_object"))
    asked = [one for one in found if one[2] not in NOT_GIVEN]
    fields = [field for field, _, _ in asked]
    require(len(asked) <= 1, f"only one of {' and '.join(fields)} can be given", fields[-1] if fields else "")
    return Structure(asked[0][0], _grammar(*asked[0])) if asked else None


def _grammar(field: str, kind: str, value: Any) -> Mapping[str, Any]:
    from llguidance import regex_to_lark
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        match kind:
            case "json_object":
                return {"json_schema": {"type": "object"}}
            case "json":
                schema = value if isinstance(value, Mapping) else msgspec.json.decode(value, type=dict[str, Any])
                return {"json_schema": schema}
            case "regex":
                return {"lark_grammar": f"start: /{regex_to_lark(value)}/"}
            case "choice":
                return {"lark_grammar": "start: " + " | ".join(json.dumps(choice) for choice in value)}
        return {"lark_grammar": str(any_to_lark(value))}
    except Exception as error:  # the converters raise nothing narrower
        raise BadRequest(f"{field}: {error}", field) from error
