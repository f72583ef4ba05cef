"""Who serves which model name. Pure; fed with every InferenceService of the installation.

The oldest object that claims a name has it. ``namespace/name`` of a service is its own whoever else claims it.
"""

from collections import defaultdict
from dataclasses import dataclass

from roundhouse_operator.cluster import Obj


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """Orders by age; the UID decides between objects of the same second."""

    created: str
    uid: str
    key: str
    names: tuple[str, ...]


class ServedNames:
    """Claims by service key. `claim` and `drop` return the other services whose names may have changed hands."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        self._claimants: defaultdict[str, set[str]] = defaultdict(set)

    def services(self) -> set[str]:
        """Keys of all that claim names."""
        return set(self._claims)

    def claim(self, key: str, service: Obj) -> set[str]:
        meta = service["metadata"]
        claim = Claim(meta["creationTimestamp"], meta["uid"], key, claimed_names(service))
        before = self._claims.get(key)
        if before == claim:
            return set()
        affected = self.drop(key)
        self._claims[key] = claim
        for name in (*claim.names, key):
            self._claimants[name].add(key)
            affected |= self._claimants[name]
        return affected - {key}

    def drop(self, key: str) -> set[str]:
        claim = self._claims.pop(key, None)
        affected: set[str] = set()
        for name in (*claim.names, key) if claim else ():
            self._claimants[name].discard(key)
            affected |= self._claimants[name]
            if not self._claimants[name]:
                del self._claimants[name]
        return affected

    def lost(self, key: str) -> dict[str, str]:
        """Names that this service claims and another one has, with that one's key."""
        claim = self._claims.get(key)
        return {name: winner for name in (claim.names if claim else ()) if (winner := self._winner(name)) != key}

    def _winner(self, name: str) -> str:
        if name in self._claims:
            return name
        return min(self._claims[key] for key in self._claimants[name]).key


def claimed_names(service: Obj) -> tuple[str, ...]:
    """Names that an object asks for, also when it is invalid otherwise."""
    spec = service.get("spec")
    names = spec.get("servedNames") if isinstance(spec, dict) else None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return tuple(dict.fromkeys(names))
    return (str(service["metadata"]["name"]),)
