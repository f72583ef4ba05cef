"""The catalogue entry of a service: which replicas gateways may know. Pure.

A replica is a member from the first time it is ready until its pod is gone. Being unready for a while, or without a
lease, changes nothing: gateways see that for themselves.
"""

from collections.abc import Iterable, Sequence

import msgspec
from roundhouse_engines.launch import AGENT_PORT, ENGINE_PORT
from roundhouse_kv.records import Member, ServiceEntry

from roundhouse_operator.cluster import Obj
from roundhouse_operator.pod_facts import owner_uid
from roundhouse_operator.replica_view import Fate, ReplicaView
from roundhouse_operator.timestamps import from_timestamp

_MEMBERS = frozenset({Fate.LIVE, Fate.STOPPING, Fate.CRASHING, Fate.HUNG})


def service_entry(
    service: Obj,
    served_names: Sequence[str],
    views: Iterable[ReplicaView],
    orphans: Iterable[Obj],
    before: ServiceEntry | None,
) -> ServiceEntry:
    """``orphans``: terminating pods without EngineReplica; those known before stay as terminating members."""
    meta = service["metadata"]
    known = {member.replica_uid: member for member in before.members} if before and before.uid == meta["uid"] else {}
    members = [_member(view) for view in views if view.fate in _MEMBERS and view.was_ready and view.address]
    for pod in orphans:
        member = known.get(owner_uid(pod) or "")
        if member is not None and member.pod_uid == pod["metadata"]["uid"]:
            members.append(msgspec.structs.replace(member, terminating=True))
    return ServiceEntry(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        served_names=tuple(served_names) or (f"{meta['namespace']}/{meta['name']}",),
        members=tuple(sorted(members, key=lambda member: (member.name, member.replica_uid))),
        created=int(from_timestamp(meta["creationTimestamp"])),
    )


def _member(view: ReplicaView) -> Member:
    spec, pod = view.obj["spec"], view.pod
    assert pod is not None
    return Member(
        name=view.name,
        replica_uid=view.uid,
        pod_uid=pod["metadata"]["uid"],
        address=view.address,
        port=ENGINE_PORT,
        agent_port=AGENT_PORT,
        engine=spec["engine"],
        engine_model=spec["engineModel"],
        role="both",
        revision=view.revision,
        gpu_type=spec.get("gpuType", ""),
        gpus=_gpus(pod),
        terminating=view.draining or view.fate is Fate.STOPPING,
    )


def _gpus(pod: Obj) -> int:
    """Whole GPUs of any vendor, by the name that their device plugins give them."""
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return sum(int(count) for each in limits for name, count in each.items() if name.endswith("/gpu"))
