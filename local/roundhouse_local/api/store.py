"""Objects of every kind under one rising resourceVersion. No rules of the API live here but that one."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from roundhouse_operator.cluster import Kind, NotFound, Obj

from roundhouse_local.api.history import DEFAULT_LIMIT, Change, History
from roundhouse_local.api.merge import Owners


@dataclass(frozen=True, slots=True)
class Key:
    """Where an object lives. ``namespace`` is empty for kinds that have none."""

    kind: Kind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it is now, never changed in place, and who owns its fields."""

    obj: Obj
    owners: Owners = field(default_factory=dict)


Listener = Callable[[Key, Change], None]


class Store:
    """Everything is synchronous, so each write is atomic for the tasks of one event loop."""

    def __init__(self, history_limit: int = DEFAULT_LIMIT) -> None:
        self._objects: dict[Kind, dict[tuple[str, str], Stored]] = {}
        self._history: dict[Kind, History] = {}
        self._limit = history_limit
        self._listeners: list[Listener] = []
        self.version = 1

    def listen(self, listener: Listener) -> None:
        """``listener`` is called within each write; it may only take notes."""
        self._listeners.append(listener)

    def history(self, kind: Kind) -> History:
        return self._history.setdefault(kind, History(self._limit))

    def kinds(self) -> list[Kind]:
        return list(self._objects)

    def find(self, key: Key) -> Stored | None:
        return self._objects.get(key.kind, {}).get((key.namespace, key.name))

    def get(self, key: Key) -> Stored:
        stored = self.find(key)
        if stored is None:
            raise NotFound(f'{resource_name(key.kind)} "{key.name}" not found', 404)
        return stored

    def items(self, kind: Kind) -> Iterator[tuple[Key, Stored]]:
        """In order of namespace and name."""
        objects: Mapping[tuple[str, str], Stored] = self._objects.get(kind, {})
        for namespace, name in sorted(objects):
            yield Key(kind, namespace, name), objects[namespace, name]

    def put(self, key: Key, stored: Stored) -> Obj:
        """Write the object with the next resourceVersion, which is set here. The object belongs to the store now."""
        before = self.find(key)
        self.version += 1
        stored.obj["metadata"]["resourceVersion"] = str(self.version)
        self._objects.setdefault(key.kind, {})[key.namespace, key.name] = stored
        if before is None:
            self._publish(key, Change(self.version, "ADDED", stored.obj, None))
        else:
            self._publish(key, Change(self.version, "MODIFIED", stored.obj, before.obj))
        return stored.obj

    def remove(self, key: Key, last: Obj) -> None:
        """Take the object out; ``last`` is the state that watches see go."""
        before = self._objects[key.kind].pop((key.namespace, key.name))
        self.version += 1
        last["metadata"]["resourceVersion"] = str(self.version)
        self._publish(key, Change(self.version, "DELETED", last, before.obj))

    def _publish(self, key: Key, change: Change) -> None:
        self.history(key.kind).add(change)
        for listener in self._listeners:
            listener(key, change)


def resource_name(kind: Kind) -> str:
    """``pods`` or ``inferenceservices.roundhouse.dev``, as the API server names a resource in messages."""
    group, _, version = kind.api_version.rpartition("/")
    return f"{kind.plural}.{group}" if group and version else kind.plural
