"""Server-side apply: merge by field ownership. Pure.

Every manager owns a set of paths. Applying sets the fields that the manager names, removes those it named last time
and does not name now (unless somebody else owns them too), and refuses to change what another manager owns. A list is
one value unless the schema says it is a map (``x-kubernetes-list-type: map``) or a set. A manager that creates or
updates an object by other verbs is another owner than the same manager applying, as in a real cluster.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from roundhouse_operator.cluster import Conflict, Obj

from roundhouse_local.api.tree import clone

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a list that is a map (its keys) or a set (its value)."""

    key: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return "[" + ",".join(f"{name}={value}" if name else str(value) for name, value in self.key) + "]"


Path = tuple[str | Item, ...]


@dataclass(frozen=True, slots=True)
class Owner:
    manager: str
    operation: Literal["Apply", "Update"] = "Apply"


Owners = Mapping[Owner, frozenset[Path]]

_IDENTITY: frozenset[Path] = frozenset({("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")})
_METADATA: Schema = {
    "properties": {
        "ownerReferences": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"]},
        "finalizers": {"x-kubernetes-list-type": "set"},
    }
}


@dataclass(frozen=True, slots=True)
class Merged:
    obj: Obj
    owners: Owners


def owned_by_update(obj: Obj, schema: Schema | None, manager: str) -> Owners:
    """Ownership after a create: the creator owns every field it set."""
    return {Owner(manager, "Update"): frozenset(_leaves(obj, _root(schema))) - _IDENTITY}


def apply(
    live: Obj | None, owners: Owners, wanted: Obj, schema: Schema | None, manager: str, *, force: bool = False
) -> Merged:
    """What the object is after ``manager`` applied ``wanted``. Raises `Conflict` naming fields and owners."""
    me, root = Owner(manager), _root(schema)
    mine = frozenset(_leaves(wanted, root)) - _IDENTITY
    if live is None:
        return Merged(clone(wanted), {me: mine})
    disputed = _disputes(live, wanted, mine, {o: p for o, p in owners.items() if o != me}, root)
    if disputed and not force:
        raise Conflict(_conflict_text(disputed), 409)
    others = {owner: paths - disputed.keys() for owner, paths in owners.items() if owner != me}
    merged = _overlay(clone(live), wanted, root)
    held = frozenset[Path]().union(*others.values()) if others else frozenset[Path]()
    kept = held | mine
    for path in sorted(owners.get(me, frozenset()) - mine, key=len):
        if not any(other[: len(path)] == path for other in kept):
            _remove(merged, path, root, kept)
    return Merged(merged, {owner: paths for owner, paths in {**others, me: mine}.items() if paths})


def _root(schema: Schema | None) -> Schema:
    properties = dict((schema or {}).get("properties") or {})
    return {"properties": {**properties, "metadata": _METADATA}}


def _child(schema: Schema | None, name: str) -> Schema | None:
    if schema is None:
        return None
    found = (schema.get("properties") or {}).get(name)
    if found is None and isinstance(schema.get("additionalProperties"), Mapping):
        found = schema["additionalProperties"]
    return found if isinstance(found, Mapping) else None


def _list_kind(schema: Schema | None) -> str:
    return str((schema or {}).get("x-kubernetes-list-type", "atomic"))


def _item_schema(schema: Schema | None) -> Schema | None:
    found = (schema or {}).get("items")
    return found if isinstance(found, Mapping) else None


def _item(schema: Schema | None, value: Any) -> Item:
    if _list_kind(schema) == "set":
        return Item((("", value),))
    keys: Iterable[str] = (schema or {}).get("x-kubernetes-list-map-keys") or ()
    return Item(tuple((key, value.get(key)) for key in keys))


def _leaves(value: Any, schema: Schema | None, path: Path = ()) -> dict[Path, Any]:
    """Every path that a manager owns by naming ``value``, with the value there."""
    if isinstance(value, dict) and value and (schema or {}).get("x-kubernetes-map-type") != "atomic":
        found: dict[Path, Any] = {}
        for name, item in value.items():
            found |= _leaves(item, _child(schema, name), (*path, name))
        return found
    if isinstance(value, list) and value and _list_kind(schema) in ("map", "set"):
        found = {}
        for item in value:
            here = (*path, _item(schema, item))
            found[here] = item
            if isinstance(item, dict):
                found |= _leaves(item, _item_schema(schema), here)
        return found
    return {path: value}


def _disputes(
    live: Obj, wanted: Obj, mine: frozenset[Path], others: Owners, root: Schema
) -> dict[Path, tuple[str, ...]]:
    """Paths whose value would change although another manager owns them (or something above or below them)."""
    before, after = _leaves(live, root), _leaves(wanted, root)
    found: dict[Path, tuple[str, ...]] = {}
    for path in mine:
        if isinstance(path[-1], Item) or (path in before and before[path] == after[path]):
            continue
        for owner, paths in others.items():
            for theirs in paths:
                shorter = min(len(path), len(theirs))
                same_branch = path[:shorter] == theirs[:shorter] and not isinstance(theirs[-1], Item)
                if same_branch and (theirs == path or after[path] not in ({}, [])):
                    found[theirs] = (*found.get(theirs, ()), owner.manager)
    return found


def _conflict_text(disputed: Mapping[Path, tuple[str, ...]]) -> str:
    fields = ", ".join(
        f"{_text(path)} (owned by {', '.join(owners)})" for path, owners in sorted(disputed.items(), key=str)
    )
    count = len(disputed)
    return f"Apply failed with {count} conflict{'s' if count > 1 else ''}: {fields}"


def _text(path: Path) -> str:
    return "".join(f".{step}" if isinstance(step, str) else str(step) for step in path)


def _overlay(live: Any, wanted: Any, schema: Schema | None) -> Any:
    """``wanted`` laid over ``live``; ``live`` is changed in place where it can be."""
    if isinstance(live, dict) and isinstance(wanted, dict) and (schema or {}).get("x-kubernetes-map-type") != "atomic":
        for name, value in wanted.items():
            live[name] = _overlay(live[name], value, _child(schema, name)) if name in live else clone(value)
        return live
    if isinstance(live, list) and isinstance(wanted, list) and _list_kind(schema) in ("map", "set"):
        places = {_item(schema, value): i for i, value in enumerate(live)}
        for value in wanted:
            place = places.get(_item(schema, value))
            if place is None:
                live.append(clone(value))
            else:
                live[place] = _overlay(live[place], value, _item_schema(schema))
        return live
    return clone(wanted)


def _remove(node: Any, path: Path, schema: Schema | None, keep: frozenset[Path], at: int = 0) -> bool:
    """Take the field at ``path`` out, and every container that this empties. True when ``node`` itself is empty now."""
    step = path[at]
    if isinstance(step, Item):
        if not isinstance(node, list):
            return False
        place = next((i for i, value in enumerate(node) if _item(schema, value) == step), None)
        if place is None:
            return not node
        if at == len(path) - 1 or _remove(node[place], path, _item_schema(schema), keep, at + 1):
            del node[place]
        return not node
    if not isinstance(node, dict) or step not in node:
        return False
    if at == len(path) - 1 or (
        _remove(node[step], path, _child(schema, step), keep, at + 1) and path[: at + 1] not in keep
    ):
        del node[step]
    return not node
