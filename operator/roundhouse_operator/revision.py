"""Revision of an InferenceService: the hash of those fields whose change needs new pods.

Only the user's own fields count, never what the operator renders from them: a new operator, agent image or
installation default does not restart a GPU. ``modelSecret`` is left out too: a rotated token restarts nothing.
"""

import hashlib
import json
from typing import Any

from roundhouse_operator.api.service import InferenceServiceSpec

_POD_FIELDS = ("model", "model_cache", "engine", "resources", "pod_template")


def revision(spec: InferenceServiceSpec) -> str:
    """Ten hex digits."""
    fields = spec.model_dump(by_alias=True, exclude_none=True, include=set(_POD_FIELDS))
    canonical = json.dumps(_without_empty(fields), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def _without_empty(value: Any) -> Any:
    """An empty object or list says the same as an absent one; but an empty ``emptyDir`` is a choice."""
    if not isinstance(value, dict):
        return value
    kept = {name: _without_empty(item) for name, item in value.items()}
    return {name: item for name, item in kept.items() if item not in ({}, []) or name == "emptyDir"}
