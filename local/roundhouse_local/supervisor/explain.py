"""`roundhouse explain`: what operator and gateways say about a service, a replica or one request."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
from roundhouse_operator.cluster import ENGINE_REPLICA, INFERENCE_SERVICE, NotFound, Obj

from roundhouse_local.api import MemoryCluster
from roundhouse_local.api.metadata import rfc3339
from roundhouse_local.errors import UserError
from roundhouse_local.supervisor.tables import aligned


async def explain(
    what: str, namespace: str, cluster: MemoryCluster, admins: Sequence[str], http: aiohttp.ClientSession
) -> str:
    """``what``: the name of an InferenceService or EngineReplica, or a request id. Raises `UserError`."""
    for kind in (INFERENCE_SERVICE, ENGINE_REPLICA):
        try:
            obj = await cluster.get(kind, namespace, what)
        except NotFound:
            continue
        seen = [await _ask(http, f"{admin}/admin/replicas") for admin in admins]
        return "\n".join([*_conditions(kind.kind, obj), *_scaling(obj), *_routing(what, obj, seen)])
    answers = await asyncio.gather(*(_ask(http, f"{admin}/admin/requests/{what}") for admin in admins))
    found = next((answer for answer in answers if answer), None)
    if found is None:
        raise UserError(
            f"{what} is no InferenceService or EngineReplica in namespace {namespace}, and no gateway remembers a "
            "request of that id (each keeps the last 10,000; an answer's id is in its x-request-id header)"
        )
    return "\n".join(_request(found))


async def _ask(http: aiohttp.ClientSession, url: str) -> Obj | None:
    try:
        async with http.get(url) as answer:
            if answer.status != 200:
                return None
            found: Obj = await answer.json(content_type=None)
            return found
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def _conditions(kind: str, obj: Obj) -> list[str]:
    metadata, status = obj["metadata"], obj.get("status") or {}
    lines = [f"{kind} {metadata['namespace']}/{metadata['name']}"]
    rows = [["CONDITION", "STATUS", "REASON", "MESSAGE"]]
    for condition in status.get("conditions") or ():
        rows.append([str(condition.get(field, "")) for field in ("type", "status", "reason", "message")])
    lines += aligned(rows) if len(rows) > 1 else ["The operator has not looked at it yet."]
    if stack := status.get("stack"):
        lines += ["", "What runs:", *aligned([[f"  {name}", str(value)] for name, value in sorted(stack.items())])]
    return lines


def _scaling(obj: Obj) -> list[str]:
    """Of a service: how many replicas and by whose choice, with the last decisions."""
    scaling, status = obj["spec"].get("scaling"), obj.get("status") or {}
    if "service" in obj["spec"]:
        return []
    if scaling is None:
        return ["", f"Replicas: {obj['spec'].get('replicas', 1)}, as spec.replicas says."]
    found = status.get("scaling") or {}
    lines = [
        "",
        f"Replicas: {found.get('replicas', 'not decided yet')}, {scaling.get('min', 1)} to {scaling['max']} by load.",
    ]
    rows = [["DECIDED", "REPLICAS", "REASON", "BECAUSE"]]
    for decision in found.get("decisions") or ():
        change = f"{decision['previous']} → {decision['replicas']}"
        rows.append([decision["time"], change, decision["reason"], decision.get("message", "")])
    return [*lines, *(f"  {line}" for line in aligned(rows))] if len(rows) > 1 else lines


def _routing(what: str, obj: Obj, seen: Sequence[Obj | None]) -> list[str]:
    key = f"{obj['metadata']['namespace']}/{obj['spec'].get('service', what)}"
    lines = []
    for place, answer in enumerate(seen):
        lines += ["", f"Gateway {answer['gateway'] if answer else place + 1}:"]
        services = [service for service in (answer or {}).get("services", []) if service["service"] == key]
        if not services:
            lines.append("  does not answer" if answer is None else f"  does not know {key}")
            continue
        lines += [f"  {line}" for line in aligned(_replica_rows(services[0]["replicas"]))]
    return lines


_REPLICA_FIELDS = (
    ("REPLICA", "name"),
    ("STATE", "state"),
    ("STALE", "stale"),
    ("EXACT", "exact"),
    ("KEYS", "keys"),
    ("BOOKED S", "prefillSeconds"),
    ("IN FLIGHT", "requests"),
    ("WAITING", "waiting"),
    ("RUNNING", "running"),
    ("KV USED", "kvUsed"),
    ("SPEED", "speed"),
    ("NOTE", "reason"),
)


def _replica_rows(replicas: Sequence[Obj]) -> list[list[str]]:
    return [
        [title for title, _ in _REPLICA_FIELDS],
        *([_shown(replica.get(field)) for _, field in _REPLICA_FIELDS] for replica in replicas),
    ]


def _request(found: Obj) -> list[str]:
    actual = found.get("actual") or {}
    service, begun = found["service"], rfc3339(found["started"])
    lines = [f"Request {found['id']}: {found['path']} model {found['model']} ({service}), {begun}"]
    fields = ("replica", "matchedBytes", "predictedCachedTokens", "bookedSeconds", "ownSeconds", "contextSeconds",
              "totalSeconds", "note")  # fmt: skip
    if candidates := found.get("candidates"):
        rows = [list(fields), *([_shown(candidate.get(field)) for field in fields] for candidate in candidates)]
        lines += ["", "Candidates:", *(f"  {line}" for line in aligned(rows))]
    if picks := found.get("picks"):
        lines += ["", "Sent to:"]
        lines += [f"  {pick['replica']}: {pick.get('reason', '')} → {pick.get('outcome', '')}" for pick in picks]
    if actual:
        lines += ["", "Came out as:", *(f"  {name}: {_shown(value)}" for name, value in actual.items())]
    return lines


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
