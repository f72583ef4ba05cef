"""Label selectors of the equality kind."""

from collections.abc import Mapping

from roundhouse_operator.cluster import Obj


def labels_of(obj: Obj) -> Mapping[str, str]:
    labels: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return labels


def matches(obj: Obj, labels: Mapping[str, str] | None) -> bool:
    """Whether the object carries every label asked for."""
    if not labels:
        return True
    have = labels_of(obj)
    return all(have.get(key) == value for key, value in labels.items())
