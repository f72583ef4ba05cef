"""What the admin API shows of the data plane (contracts §9). Read on the data plane's loop, rendered elsewhere."""

from typing import Any

import msgspec
from roundhouse_kv.catalogue_store import Catalogue

from roundhouse_gateway.data_plane import DataPlane
from roundhouse_gateway.fleet import Service
from roundhouse_gateway.metrics import Gauge
from roundhouse_gateway.replica import Replica


def replicas_json(plane: DataPlane) -> dict[str, Any]:
    return {
        "v": 1,
        "gateway": f"{plane.incarnation:016x}",
        "services": [_service(service, plane.clock()) for service in plane.fleet.services.values()],
    }


def _service(service: Service, now: float) -> dict[str, Any]:
    return {
        "service": service.key,
        "servedNames": list(service.view.entry.served_names),
        "replicas": [_replica(service, replica, now) for replica in service.replicas.values()],
    }


def _replica(service: Service, replica: Replica, now: float) -> dict[str, Any]:
    load = service.view.books.load(replica.pod_uid, now)
    lease = replica.lease.lease if replica.lease is not None else None
    return {
        "name": replica.name,
        "replicaUid": replica.member.replica_uid,
        "podUid": replica.member.pod_uid,
        "address": f"{replica.member.address}:{replica.member.port}",
        "state": lease.state if lease is not None else "unknown",
        "stale": replica.facts.stale,
        "trusted": service.view.index.trusted(replica.pod_uid),
        "epoch": replica.epoch,
        "keys": service.view.index.key_count(replica.pod_uid),
        "exact": replica.predictable,
        "reason": replica.reason,
        "prefillSeconds": round(load.prefill_s, 6),
        "contextTokens": load.context_tokens,
        "requests": load.requests,
        "speed": round(1 / replica.speed.f, 4),
        "waiting": lease.waiting if lease is not None else None,
        "running": lease.running if lease is not None else None,
        "kvUsed": lease.kv_used if lease is not None else None,
    }


def catalogue_json(catalogue: Catalogue | None, age_s: float | None) -> dict[str, Any]:
    if catalogue is None:
        return {"v": 1, "term": None, "version": None, "ageSeconds": None, "services": []}
    return {
        "v": 1,
        "term": catalogue.term,
        "version": catalogue.version,
        "ageSeconds": None if age_s is None else round(age_s, 3),
        "services": [msgspec.to_builtins(entry) for entry in catalogue.services.values()],
    }


def plane_gauges(plane: DataPlane) -> list[Gauge]:
    services = list(plane.fleet.services.values())
    pods = [((s.key, r.name), r) for s in services for r in s.replicas.values()]
    replica = ("service", "replica")
    return [
        Gauge("in_flight", "Requests in flight.", ("service",), [((s.key,), float(s.in_flight)) for s in services]),
        Gauge("exchanges", "Requests in flight, of all services.", (), [((), float(len(plane.exchanges)))]),
        Gauge("client_connections", "Open client connections.", (), [((), float(len(plane.connections)))]),
        Gauge(
            "upstream_connections",
            "Open connections to a replica.",
            replica,
            [(labels, float(r.pool.open_connections)) for labels, r in pods],
        ),
        Gauge("replica_stale", "1: no fresh lease.", replica, [(labels, float(r.facts.stale)) for labels, r in pods]),
        Gauge(
            "replica_predictable",
            "1: its cache is followed by events; 0: by history.",
            replica,
            [(labels, float(r.predictable)) for labels, r in pods],
        ),
        Gauge("replica_slowness", "Learned factor on predicted prefill.", replica, [(l_, r.speed.f) for l_, r in pods]),
        Gauge("ready", "1: serving.", (), [((), float(plane.ready))]),
    ]
