"""Objects of the API → models, and every complaint about one that breaks schema or rules."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import ValidationError

from roundhouse_operator.api.replica import EngineReplica, EngineReplicaSpec
from roundhouse_operator.api.rules import ApiModel
from roundhouse_operator.api.service import InferenceService
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, Obj
from roundhouse_operator.errors import InvalidObject

M = TypeVar("M", bound=ApiModel)
Path = tuple[str | int, ...]


def parse_service(obj: Obj) -> InferenceService:
    """Raises `InvalidObject`."""
    return _parse(InferenceService, obj)


def parse_replica(obj: Obj) -> EngineReplica:
    """Raises `InvalidObject`."""
    return _parse(EngineReplica, obj)


def service_complaints(obj: Obj, before: Obj | None = None) -> list[str]:
    """What is wrong with an InferenceService that would replace ``before``; empty when nothing is."""
    return _complaints(parse_service, obj)


def replica_complaints(obj: Obj, before: Obj | None = None) -> list[str]:
    """What is wrong with an EngineReplica that would replace ``before``; empty when nothing is."""
    found = _complaints(parse_replica, obj)
    if found or before is None:
        return found
    old, new = before["spec"], obj["spec"]
    changed = [t for t in EngineReplicaSpec.transitions if old.get(t.field) != new.get(t.field)]
    return [f"spec.{transition.field}: {transition.message}" for transition in changed]


COMPLAINTS: Mapping[str, Callable[[Obj, Obj | None], list[str]]] = {
    INFERENCE_SERVICE.plural: service_complaints,
    ENGINE_REPLICA.plural: replica_complaints,
}
"""By plural, for an API that has no CEL."""


def _parse(model: type[M], obj: Obj) -> M:
    try:
        return model.model_validate(obj)
    except ValidationError as error:
        raise InvalidObject(_lines(error)) from None


def _complaints(parse: Callable[[Obj], ApiModel], obj: Obj) -> list[str]:
    try:
        parse(obj)
    except InvalidObject as error:
        return list(error.complaints)
    return []


def _lines(error: ValidationError) -> list[str]:
    lines = []
    for item in error.errors(include_url=False, include_input=False):
        where: Path = item["loc"]
        field = item.get("ctx", {}).get("field", "")
        if item["type"] == "rule" and field:
            where = (*where, field)
        lines.append(f"{_dotted(where) or 'object'}: {item['msg']}")
    return list(dict.fromkeys(lines))


def _dotted(path: Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
