"""Fields of a pod that mean nothing to processes without namespaces and cgroups. Pure."""

from roundhouse_operator.cluster import Obj

POD_FIELDS = frozenset(
    {"dnsConfig", "dnsPolicy", "hostIPC", "hostNetwork", "hostPID", "imagePullSecrets", "priorityClassName",
     "runtimeClassName", "securityContext", "serviceAccountName", "tolerations", "topologySpreadConstraints"}
)  # fmt: skip
CONTAINER_FIELDS = frozenset({"imagePullPolicy", "securityContext", "volumeDevices", "resizePolicy"})


def ignored_fields(spec: Obj) -> set[str]:
    """Names of the ignored fields that this pod uses; limits are counted by the scheduler but not enforced."""
    found = {field for field in spec.keys() & POD_FIELDS if spec[field]}
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        found |= {f"containers[].{field}" for field in container.keys() & CONTAINER_FIELDS if container[field]}
        limits = (container.get("resources") or {}).get("limits") or {}
        found |= {f"containers[].resources.limits.{name}" for name in limits.keys() & {"cpu", "memory"}}
        if "postStart" in (container.get("lifecycle") or {}):
            found.add("containers[].lifecycle.postStart")
        if any(mount.get("readOnly") for mount in container.get("volumeMounts") or ()):
            found.add("containers[].volumeMounts[].readOnly")
    return found
