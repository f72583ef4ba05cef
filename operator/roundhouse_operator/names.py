"""Names, labels and ports of everything that the operator makes."""

import hashlib
import re
from collections.abc import Collection
from urllib.parse import unquote

GROUP = "roundhouse.dev"

MANAGED_BY = "app.kubernetes.io/managed-by"
SERVICE_LABEL = f"{GROUP}/service"
REPLICA_LABEL = f"{GROUP}/replica"
REVISION_LABEL = f"{GROUP}/revision"
ROLE_LABEL = f"{GROUP}/role"
OURS = {MANAGED_BY: "roundhouse"}

REDIS_SECRET = "roundhouse-redis"
RUN_DIR = "/run/roundhouse"
MODELS_DIR = "/models"

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: five of them never spell a word


def service_labels(service: str) -> dict[str, str]:
    """Labels that select everything of one service within its namespace."""
    return {**OURS, SERVICE_LABEL: service}


def replica_name(service: str, service_uid: str, revision: str, taken: Collection[str]) -> str:
    """``<service>-<5 characters of hash(service uid, revision, k)>`` with the smallest k whose name is free."""
    k = 0
    while (name := f"{service}-{_suffix(f'{service_uid}/{revision}/{k}')}") in taken:
        k += 1
    return name


def companion_name(service: str) -> str:
    """Of the objects that a service has once."""
    return f"{service}-roundhouse"


def agent_user(installation: str, namespace: str) -> str:
    """User of Redis for the agents of one namespace."""
    return f"rh-{hashlib.sha256(f'{installation}/{namespace}'.encode()).hexdigest()[:16]}"


def _suffix(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    letters = []
    for _ in range(5):
        number, index = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[index])
    return "".join(letters)


def model_slug(uri: str) -> str:
    """Folder of a model inside the cache: readable, and distinct for distinct URIs."""
    readable = re.sub(r"[^a-z0-9.]+", "-", uri.lower()).strip("-.")[-60:].lstrip("-.")
    return f"{readable}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}"


def node_path(uri: str) -> str | None:
    """Path on the node that a ``file://`` model is read from, None for other models."""
    scheme, _, rest = uri.partition("://")
    return unquote(rest) if scheme == "file" else None
