"""What the admin API shows of the data plane (contracts §9). Read on the data plane's loop, rendered elsewhere."""

from collections.abc import Callable
from typing import Any

import msgspec
from roundhouse_kv.catalogue_store import Catalogue
from roundhouse_kv.gateway_feed import GatewayFeed
from roundhouse_kv.redis_link import RedisLink

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


def feed_gauges(feed: GatewayFeed, link: RedisLink, missed_beats: int) -> list[Gauge]:
    views = feed.views.values()
    age = feed.catalogue_age
    leases = [seen for view in views for seen in view.leases.values()]
    return [
        _single("redis_healthy", "1: Redis answered within the last second.", link.healthy),
        _single("redis_settled", "1: what is missing in Redis counts as stale.", link.settled),
        _single("catalogue_known", "1: there is a catalogue.", feed.catalogue is not None),
        Gauge("catalogue_age_seconds", "Since Redis confirmed it.", (), [] if age is None else [((), age)]),
        _single("leases", "Leases heard.", len(leases)),
        _single("leases_stale", "Leases not heard for too long.", sum(seen.stale for seen in leases)),
        _single("books_open", "Bookings of all gateways.", sum(view.books.all_open for view in views)),
        _single("books_own", "Bookings of this gateway.", sum(view.books.own_open for view in views)),
        _single("beats_missed", "Seconds in which Redis did not take the heartbeat.", missed_beats),
    ]


def plane_gauges(plane: DataPlane) -> list[Gauge]:
    services = list(plane.fleet.services.values())
    pods = [((service.key, replica.name), replica) for service in services for replica in service.replicas.values()]

    def by_replica(name: str, text: str, look: Callable[[Replica], float]) -> Gauge:
        return Gauge(name, text, ("service", "replica"), [(labels, float(look(replica))) for labels, replica in pods])

    return [
        Gauge("in_flight", "Requests in flight.", ("service",), [((s.key,), float(s.in_flight)) for s in services]),
        _single("exchanges", "Requests in flight, of all services.", len(plane.exchanges)),
        _single("client_connections", "Open client connections.", len(plane.connections)),
        by_replica("upstream_connections", "Open connections to a replica.", lambda r: r.pool.open_connections),
        by_replica("replica_stale", "1: no fresh lease.", lambda r: r.facts.stale),
        by_replica("replica_predictable", "1: its cache is followed by events.", lambda r: r.predictable),
        by_replica("replica_slowness", "Learned factor on predicted prefill.", lambda r: r.speed.f),
        _single("ready", "1: serving.", plane.ready),
    ]


def _single(name: str, text: str, value: float) -> Gauge:
    return Gauge(name, text, (), [((), float(value))])
