"""Resource quantities such as ``500m``, ``2Gi`` and ``4``, exact. Pure."""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from roundhouse_operator.cluster import Obj

Amounts = dict[str, Fraction]

_QUANTITY = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIX = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip


def parse_quantity(text: Any) -> Fraction:
    """Raises ValueError."""
    found = _QUANTITY.fullmatch(str(text).strip())
    if not found:
        raise ValueError(f"{text!r} is not a quantity such as 500m, 2Gi or 4")
    number, exponent, suffix = found.groups()
    return Fraction(number + (exponent or "")) * _SUFFIX[suffix or ""]


def pod_requests(pod: Obj) -> Amounts:
    """What the scheduler counts: containers and sidecars together, or the largest init container with the sidecars
    started before it, whichever is more (KEP-753). Limits stand in for missing requests."""
    spec = pod["spec"]
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        need = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _add(sidecars, need)
            need = {}
        peak = _max(peak, _add(sidecars, need))
    steady = sidecars
    for container in spec.get("containers") or ():
        steady = _add(steady, _container_requests(container))
    return _add(_max(peak, steady), {"pods": Fraction(1)})


def amounts(quantities: Mapping[str, Any]) -> Amounts:
    return {name: parse_quantity(value) for name, value in quantities.items()}


def total(parts: Iterable[Amounts]) -> Amounts:
    result: Amounts = {}
    for part in parts:
        result = _add(result, part)
    return result


def _container_requests(container: Obj) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _add(a: Amounts, b: Amounts) -> Amounts:
    return {name: a.get(name, Fraction(0)) + b.get(name, Fraction(0)) for name in a.keys() | b.keys()}


def _max(a: Amounts, b: Amounts) -> Amounts:
    return {name: max(a.get(name, Fraction(0)), b.get(name, Fraction(0))) for name in a.keys() | b.keys()}
