"""Validation against CustomResourceDefinitions, as the API server does it under strict field validation.

A structural schema is turned into a JSON schema that also refuses unknown fields; rules that a real server evaluates
as CEL are given as Python checks of the same rules and run when the schema has no complaint, in the same order as
there. Kinds without a CRD are accepted as they are.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from roundhouse_operator.cluster import Invalid, Kind, Obj

from roundhouse_local.api.merge import Schema
from roundhouse_local.api.store import resource_name

Rule = Callable[[Obj, Obj | None], Iterable[str]]
"""Complaints about an object, each beginning with the field, given the object it replaces."""

_TYPES = {"type", "enum", "pattern", "format", "required", "multipleOf", "uniqueItems"}
_BOUNDS = {"minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "minProperties", "maxProperties"}
_COPIED = _TYPES | _BOUNDS
_INT_RANGE = {"int32": 2**31, "int64": 2**63}
_ANYTHING: Schema = {"type": "object"}


class SchemaValidator:
    """``rules`` by the plural name of the kind."""

    def __init__(self, crds: Iterable[Obj], rules: Mapping[str, Rule] | None = None) -> None:
        self._schemas: dict[tuple[str, str], Schema] = {}
        self._validators: dict[tuple[str, str], Draft202012Validator] = {}
        self._rules = dict(rules or {})
        for crd in crds:
            spec = crd["spec"]
            for version in spec["versions"]:
                kind = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                schema = version["schema"]["openAPIV3Schema"]
                self._schemas[kind] = schema
                self._validators[kind] = Draft202012Validator(_json_schema(_with_root(schema)))

    def schema(self, kind: Kind) -> Schema | None:
        return self._schemas.get((kind.api_version, kind.kind))

    def check(self, kind: Kind, obj: Obj, before: Obj | None) -> None:
        """Raises `Invalid` with every complaint."""
        validator = self._validators.get((kind.api_version, kind.kind))
        if validator is None:
            return
        found = [text for error in validator.iter_errors(obj) for text in _complaints(error)]
        rule = self._rules.get(kind.plural)
        if not found and rule is not None:
            found = list(rule(obj, before))
        if found:
            group = resource_name(kind).removeprefix(kind.plural)
            raise Invalid(f'{kind.kind}{group} "{obj["metadata"]["name"]}" is invalid: {"; ".join(sorted(found))}', 422)


def _with_root(schema: Schema) -> Schema:
    root = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _ANYTHING}
    return {**schema, "type": "object", "properties": {**(schema.get("properties") or {}), **root}}


def _json_schema(schema: Schema) -> dict[str, Any]:
    """JSON schema 2020-12 of a structural OpenAPI v3 schema."""
    out: dict[str, Any] = {key: value for key, value in schema.items() if key in _COPIED}
    if schema.get("x-kubernetes-int-or-string"):
        out["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in out:
        out["type"] = [*_as_list(out["type"]), "null"]
    for bound in ("minimum", "maximum"):
        if schema.get(f"exclusive{bound.capitalize()}") is True and bound in schema:
            out[f"exclusive{bound.capitalize()}"] = out.pop(bound)
    limit = _INT_RANGE.get(str(schema.get("format")))
    if limit:
        out = {"minimum": -limit, "maximum": limit - 1, **out}
    if isinstance(schema.get("items"), Mapping):
        out["items"] = _json_schema(schema["items"])
    if schema.get("x-kubernetes-list-type") == "set":
        out["uniqueItems"] = True
    if isinstance(schema.get("additionalProperties"), Mapping):
        out["additionalProperties"] = _json_schema(schema["additionalProperties"])
    elif "properties" in schema:
        out["properties"] = {name: _json_schema(child) for name, child in schema["properties"].items()}
        out["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    for combination in ("anyOf", "allOf", "oneOf"):
        if combination in schema:
            out[combination] = [_json_schema_fragment(child) for child in schema[combination]]
    return out


def _json_schema_fragment(schema: Schema) -> dict[str, Any]:
    """Inside a combination a schema only restricts: fields that it does not name are not unknown."""
    out = _json_schema(schema)
    out.pop("additionalProperties", None)
    return out


def _complaints(error: ValidationError) -> list[str]:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path).lstrip(".")
    return _texts(path, error.instance, str(error.validator), error.validator_value, error.schema)


def _texts(path: str, instance: Any, validator: str, limit: Any, schema: Any) -> list[str]:
    """In the API server's words; ``limit`` is what the schema says under ``validator``."""
    value = _shown(instance)
    match validator:
        case "additionalProperties":
            known = schema.get("properties", {})
            where = f"{path}." if path else ""
            return [f'unknown field "{where}{name}"{_near(name, known)}' for name in instance if name not in known]
        case "required":
            where = f"{path}." if path else ""
            missing = [name for name in limit if name not in instance]
            return [f"{where}{name}: Required value" for name in missing]
        case "enum":
            allowed = ", ".join(_shown(item) for item in limit)
            return [f"{path}: Unsupported value: {value}: supported values: {allowed}"]
        case "type":
            kinds = " or ".join(_as_list(limit))
            return [f"{path}: Invalid value: {value}: {path} in body must be of type {kinds}"]
        case "pattern":
            return [f"{path}: Invalid value: {value}: {path} in body should match '{limit}'"]
        case "minimum" | "exclusiveMinimum":
            than = "greater than" if validator == "exclusiveMinimum" else "greater than or equal to"
            return [f"{path}: Invalid value: {value}: {path} in body should be {than} {limit}"]
        case "maximum" | "exclusiveMaximum":
            than = "less than" if validator == "exclusiveMaximum" else "less than or equal to"
            return [f"{path}: Invalid value: {value}: {path} in body should be {than} {limit}"]
        case "maxLength":
            return [f"{path}: Too long: may not be more than {limit} bytes"]
        case "maxItems":
            return [f"{path}: Too many: {len(instance)}: must have at most {limit} items"]
        case "uniqueItems":
            return [f"{path}: Duplicate value: {value}"]
        case _:
            return [f"{path}: Invalid value: {value}: does not follow {validator} of its schema"]


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _as_list(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) else [value]


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return '"object"' if isinstance(value, dict) else '"array"'
    return json.dumps(value)
