"""What the API server writes into metadata, and the names it accepts."""

import random
import re
import string
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from roundhouse_operator.cluster import Invalid, Kind, Obj

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_SUFFIX = string.ascii_lowercase + string.digits

DEFAULT_NAMESPACE = "default"
SERVER_FIELDS = ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
"""Metadata that only the server writes; what a client sends there is a precondition or is dropped."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """Where time, uids and name suffixes come from."""

    now: Callable[[], float]
    uid: Callable[[], str] = lambda: str(uuid.uuid4())
    suffix: Callable[[], str] = lambda: "".join(random.choices(_SUFFIX, k=5))

    def time(self, ahead_s: float = 0) -> str:
        return rfc3339(self.now() + ahead_s)


def rfc3339(unix_s: float) -> str:
    """Whole seconds, as Kubernetes writes times."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix_seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def check_type(kind: Kind, obj: Obj) -> None:
    """The object says that it is of this kind, or says nothing. Raises `Invalid`."""
    for field, want in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        if obj.setdefault(field, want) != want:
            raise Invalid(f"{field}: {obj[field]!r} does not match {want!r}", 400)


def check_metadata(kind: Kind, metadata: Any, namespaced: bool) -> None:
    """Names and labels follow the rules of Kubernetes. Raises `Invalid`."""
    if not isinstance(metadata, dict):
        raise Invalid(f"{kind.kind}: metadata must be a mapping", 422)
    name = metadata.get("name")
    where = f'{kind.kind} "{name}" is invalid'
    if not isinstance(name, str) or not name:
        raise Invalid(f"{kind.kind}: metadata.name: Required value: name or generateName is required", 422)
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise Invalid(
            f'{where}: metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower '
            "case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            422,
        )
    namespace = metadata.get("namespace")
    if namespaced and (not isinstance(namespace, str) or len(namespace) > 63 or not _NAMESPACE.fullmatch(namespace)):
        raise Invalid(f'{where}: metadata.namespace: Invalid value: "{namespace}": must be an RFC 1123 label', 422)
    for field in ("labels", "annotations"):
        _check_text_map(where, field, metadata.get(field))
    for key, value in (metadata.get("labels") or {}).items():
        if len(value) > 63 or not _LABEL.fullmatch(value):
            raise Invalid(f'{where}: metadata.labels: Invalid value: "{value}": not a valid label value of {key}', 422)


def _check_text_map(where: str, field: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise Invalid(f"{where}: metadata.{field}: Invalid value: must be a mapping of strings to strings", 422)
