"""Rules that no schema of a single field can say: as CEL for the API server, and as Python for everybody else.

A model lists its rules in ``rules`` (about one object) and ``transitions`` (about a change). Both sides give the same
message, which names the field and the fix; the table of invalid objects in the tests holds them to that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError


@dataclass(frozen=True, slots=True)
class Rule:
    """``cel`` must be true of ``self``; ``holds`` says the same in Python. ``field`` is relative to the model."""

    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str = ""


@dataclass(frozen=True, slots=True)
class Transition:
    """A field that never changes."""

    field: str
    message: str

    @property
    def cel(self) -> str:
        return f"self.{self.field} == oldSelf.{self.field}"


class ApiModel(BaseModel):
    """Base of everything inside the resources. Unknown fields are ignored: a CRD may be newer than its operator."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    transitions: ClassVar[tuple[Transition, ...]] = ()

    @model_validator(mode="after")
    def _obeys_rules(self) -> Self:
        for rule in type(self).rules:
            if not rule.holds(self):
                raise PydanticCustomError("rule", "{message}", {"message": rule.message, "field": rule.field})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        validations = [
            *(_validation(rule.cel, rule.message, rule.field) for rule in cls.rules),
            *(_validation(change.cel, change.message, change.field) for change in cls.transitions),
        ]
        if validations:
            schema["x-kubernetes-validations"] = validations
        return schema


def _validation(cel: str, message: str, field: str) -> dict[str, str]:
    entry = {"rule": cel, "message": message}
    return {**entry, "fieldPath": f".{field}"} if field else entry
