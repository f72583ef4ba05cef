"""Tables of `roundhouse get`, from the printer columns of the CRDs, as kubectl prints them. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roundhouse_operator.cluster import Obj

from roundhouse_local.api.metadata import unix_seconds

_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\[\?\(@\.([A-Za-z0-9_]+)==\"([^\"]*)\"\)\]|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Column:
    """``path`` in the JSONPath of CRDs. ``wide``: only with ``-o wide``."""

    name: str
    path: str
    kind: str = "string"
    wide: bool = False


POD_COLUMNS = (
    Column("Ready", "ready"),
    Column("Status", "status"),
    Column("Restarts", "restarts"),
    Column("Age", ".metadata.creationTimestamp", "date"),
    Column("IP", ".status.podIP", wide=True),
    Column("Node", ".spec.nodeName", wide=True),
)
PLAIN_COLUMNS = (Column("Age", ".metadata.creationTimestamp", "date"),)


def crd_columns(crd: Obj) -> tuple[Column, ...]:
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    return tuple(Column(c["name"], c["jsonPath"], c["type"], c.get("priority", 0) > 0) for c in columns)


def header(columns: Sequence[Column], *, wide: bool, namespaced: bool) -> list[str]:
    shown = [column.name.upper() for column in columns if wide or not column.wide]
    return [*(["NAMESPACE"] if namespaced else []), "NAME", *shown]


def row(obj: Obj, columns: Sequence[Column], now: float, *, wide: bool, namespaced: bool) -> list[str]:
    metadata = obj["metadata"]
    cells = [cell(obj, column, now) for column in columns if wide or not column.wide]
    return [*([metadata.get("namespace", "")] if namespaced else []), metadata["name"], *cells]


def cell(obj: Obj, column: Column, now: float) -> str:
    """Empty when there is nothing at the path."""
    value = _POD_CELLS[column.path](obj) if column.path in _POD_CELLS else find(obj, column.path)
    if value is None:
        return ""
    if column.kind == "date":
        return age(now - unix_seconds(str(value)))
    return str(value)


def find(obj: Any, path: str) -> Any:
    """Fields, indices and ``[?(@.type=="Ready")]``; None when something on the way is missing."""
    for name, key, value, index in _STEP.findall(path):
        if name:
            obj = obj.get(name) if isinstance(obj, dict) else None
        elif not isinstance(obj, list):
            return None
        elif key:
            obj = next((item for item in obj if isinstance(item, dict) and str(item.get(key)) == value), None)
        else:
            obj = obj[int(index)] if int(index) < len(obj) else None
    return obj


def age(seconds: float) -> str:
    """As kubectl: two units while small, one when large."""
    s = max(0, int(seconds))
    for limit, big, unit, small, small_unit in (
        (120, 1, "s", 0, ""),
        (600, 60, "m", 1, "s"),
        (3 * 3600, 60, "m", 0, ""),
        (8 * 3600, 3600, "h", 60, "m"),
        (48 * 3600, 3600, "h", 0, ""),
        (8 * 86400, 86400, "d", 3600, "h"),
    ):
        if s < limit:
            rest = s % big // small if small else 0
            return f"{s // big}{unit}{rest}{small_unit}" if rest else f"{s // big}{unit}"
    return f"{s // 86400}d"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns three blanks apart."""
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(rows[0]))] if rows else []
    return ["   ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True)).rstrip() for cells in rows]


def _containers(pod: Obj) -> list[Obj]:
    """Statuses that count for readiness: main containers and sidecars."""
    spec, status = pod["spec"], pod.get("status") or {}
    sidecars = {c["name"] for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    inits = [item for item in status.get("initContainerStatuses") or () if item["name"] in sidecars]
    return [*inits, *(status.get("containerStatuses") or ())]


def _ready(pod: Obj) -> str:
    spec = pod["spec"]
    sidecars = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    return f"{sum(item['ready'] for item in _containers(pod))}/{len(spec['containers']) + len(sidecars)}"


def _restarts(pod: Obj) -> int:
    return sum(item["restartCount"] for item in _containers(pod))


def _status(pod: Obj) -> str:
    """The most telling word, as kubectl chooses it: a container's reason before the phase."""
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    inits = status.get("initContainerStatuses") or ()
    for place, item in enumerate(inits):
        terminated, waiting = item["state"].get("terminated"), item["state"].get("waiting")
        if (terminated and terminated["exitCode"] == 0) or item.get("started"):
            continue
        if terminated:
            return f"Init:{terminated['reason']}"
        if waiting and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{place}/{len(inits)}"
    for item in reversed(status.get("containerStatuses") or ()):
        for state in ("waiting", "terminated"):
            if reason := item["state"].get(state, {}).get("reason"):
                return str(reason)
    return str(status.get("phase", "Unknown"))


_POD_CELLS = {"ready": _ready, "status": _status, "restarts": _restarts}
