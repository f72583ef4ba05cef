"""Structural OpenAPI v3 schemas, as CustomResourceDefinitions need them, from pydantic's JSON schemas.

pydantic speaks JSON schema 2020-12; the API server takes a narrow dialect of OpenAPI 3.0. The differences that occur
here: references are inlined, an optional field is its type alone, integers may come as text where they are quantities,
exclusive bounds are booleans, titles and stored defaults go.
"""

from typing import Any

from roundhouse_operator.api.rules import ApiModel

Schema = dict[str, Any]

_KEPT = (
    "type", "description", "format", "pattern", "enum", "required", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
)  # fmt: skip


def structural_schema(model: type[ApiModel]) -> Schema:
    """The schema of one model, without references."""
    raw = model.model_json_schema(by_alias=True)
    return _convert(raw, raw.get("$defs", {}))


def _convert(raw: Schema, defs: dict[str, Schema]) -> Schema:
    raw = _resolved(raw, defs)
    options = [option for option in raw.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) == 1:
        return _convert({**_resolved(options[0], defs), **_without(raw, "anyOf")}, defs)
    out: Schema = {key: raw[key] for key in _KEPT if key in raw}
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    if options:
        return {**out, **_int_or_string(options)}
    if raw.get("type") == "integer":
        out["format"] = "int64" if raw.get("maximum", 2**31) >= 2**31 else "int32"
    if raw.get("type") == "array":
        out["items"] = _convert(raw["items"], defs)
    if raw.get("type") == "object":
        out.update(_object(raw, defs))
    return out


def _object(raw: Schema, defs: dict[str, Schema]) -> Schema:
    if "properties" in raw:
        return {"properties": {name: _convert(value, defs) for name, value in raw["properties"].items()}}
    values = raw.get("additionalProperties")
    if isinstance(values, dict) and values:
        return {"additionalProperties": _convert(values, defs)}
    return {"x-kubernetes-preserve-unknown-fields": True}


def _int_or_string(options: list[Schema]) -> Schema:
    if sorted(option.get("type", "") for option in options) != ["integer", "string"]:
        raise TypeError(f"no structural schema for the union {options}: make it optional members and a rule")
    return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def _resolved(raw: Schema, defs: dict[str, Schema]) -> Schema:
    if "$ref" not in raw:
        return raw
    target = defs[raw["$ref"].removeprefix("#/$defs/")]
    return {**target, **_without(raw, "$ref")}


def _without(raw: Schema, *keys: str) -> Schema:
    return {key: value for key, value in raw.items() if key not in (*keys, "default", "title")}
