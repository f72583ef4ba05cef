"""Kubernetes timestamps: RFC 3339 in UTC, whole seconds."""

import math
from datetime import UTC, datetime


def to_timestamp(seconds: float) -> str:
    """Unix seconds → text, cut to the second."""
    return datetime.fromtimestamp(math.floor(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_timestamp(text: str) -> float:
    """Text → Unix seconds."""
    return datetime.fromisoformat(text).timestamp()
