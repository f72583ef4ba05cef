"""JSON trees: the only values that the API stores."""

from typing import Any

from roundhouse_operator.cluster import Invalid


def clone(value: Any, path: str = "") -> Any:
    """Deep copy. Raises `Invalid` for what JSON cannot hold, such as the date that YAML makes of 2024-01-01."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise Invalid(f"{path or 'object'}: key {key!r} is not a string; put it in quotes", 422)
        return {key: clone(item, f"{path}.{key}" if path else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clone(item, f"{path}[{i}]") for i, item in enumerate(value)]
    raise Invalid(f"{path}: {type(value).__name__} is not a JSON value; put it in quotes", 422)
