"""``spec.podTemplate``: what users add to the pods, and what they must leave alone. Pure.

The overlay itself is not modelled: whatever Kubernetes knows of pods passes through. Refused is what would break the
contract between operator, agent and engine, each by the name of its field and with what to use instead.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from roundhouse_operator.names import MODELS_DIR, RUN_DIR

RESERVED_ENV = ("POD_IP", "POD_UID", "RUN_DIR", "HF_TOKEN")

_INSTEAD = {
    "restartPolicy": "engines restart in place",
    "terminationGracePeriodSeconds": "use spec.drain.timeoutSeconds",
    "activeDeadlineSeconds": "replicas run until they are drained",
    "automountServiceAccountToken": "engines get no token of the API server",
    "hostNetwork": "each pod needs its own address for ports 8000 and 9090",
    "nodeName": "use nodeSelector or affinity",
    "ephemeralContainers": "use kubectl debug",
    "hostname": "the pod's own name serves as that",
    "subdomain": "gateways reach pods by address",
}
_ENGINE = {
    "image": "use spec.engine.image",
    "command": "the launch line is the engine kind's",
    "args": "use spec.engine.args",
    "ports": "gateways use port 8000",
    "lifecycle": "preStop drains the engine",
    "restartPolicy": "engines restart in place",
    "readinessProbe": "the agent tells when the engine answers",
    "terminationMessagePolicy": "the engine's last line becomes a condition",
    "terminationMessagePath": "the engine's last line becomes a condition",
    "stdin": "engines read no input",
    "tty": "engines read no input",
}
_OURS_ALLOWED = ("name", "resources", "env", "volumeMounts")
_OUR_CONTAINERS = ("agent", "fetch")
_OUR_VOLUMES = {
    "run": "it is between agent and engine",
    "tmp": "it is the containers' /tmp",
    "shm": "it is the engine's /dev/shm",
    "models": "use spec.modelCache",
    "source": "it is the folder of spec.model",
}
_OUR_PATHS = (RUN_DIR, MODELS_DIR, "/tmp", "/dev/shm")
_LISTS = ("containers", "initContainers", "volumes", "tolerations", "topologySpreadConstraints", "imagePullSecrets")


def overlay_complaints(overlay: Mapping[str, Any]) -> list[str]:
    """What the overlay must not hold, one line each, beginning with the field. Empty when all is well."""
    return [f"spec.podTemplate{where}: {why}" for where, why in _complaints(overlay)]


def _complaints(overlay: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in overlay:
        if name not in ("metadata", "spec"):
            yield f".{name}", "unknown field; a pod template has metadata and spec"
    yield from _directives(overlay, "")
    metadata, spec = overlay.get("metadata", {}), overlay.get("spec", {})
    for name, value in (("metadata", metadata), ("spec", spec)):
        if not isinstance(value, Mapping):
            yield f".{name}", "must be an object"
            return
    yield from _metadata(metadata)
    yield from _spec(spec)


def _directives(value: object, where: str) -> Iterator[tuple[str, str]]:
    """``$patch`` and its like would take things away."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if str(name).startswith("$"):
                yield f"{where}.{name}", "directives are not supported; the overlay only adds and changes"
            yield from _directives(item, f"{where}.{name}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _directives(item, f"{where}[{i}]")


def _metadata(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in metadata.items():
        if name not in ("labels", "annotations"):
            yield f".metadata.{name}", "Roundhouse sets it; only labels and annotations can be added"
        elif not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
            yield f".metadata.{name}", "must map names to texts"
        elif name == "labels":
            for label in value:
                if label == "app.kubernetes.io/managed-by" or label.split("/")[0].endswith("roundhouse.dev"):
                    yield f".metadata.labels.{label}", "Roundhouse sets it; use another label"


def _spec(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, instead in _INSTEAD.items():
        if name in spec:
            yield f".spec.{name}", f"must not be set: {instead}"
    for name in _LISTS:
        items = spec.get(name, [])
        if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
            yield f".spec.{name}", "must be a list of objects"
            return
    for name in ("containers", "initContainers"):
        for i, item in enumerate(spec.get(name, [])):
            yield from ((f".spec.{name}[{i}]{where}", why) for where, why in _container(name, item))
    for i, volume in enumerate(spec.get("volumes", [])):
        if volume.get("name") in _OUR_VOLUMES:
            yield f".spec.volumes[{i}]", f"{volume['name']} is Roundhouse's: {_OUR_VOLUMES[volume['name']]}"


def _container(field: str, item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        yield ".name", "is required: it says which container is meant"
        return
    if name == "engine" and field == "initContainers":
        yield ".name", "engine is among containers"
    elif name in _OUR_CONTAINERS and field == "containers":
        yield ".name", f"{name} is among initContainers"
    elif name == "engine":
        yield from ((f".{key}", f"must not be set: {why}") for key, why in _ENGINE.items() if key in item)
    elif name in _OUR_CONTAINERS:
        unwanted = (key for key in item if key not in _OURS_ALLOWED)
        yield from ((f".{key}", f"of container {name} is Roundhouse's own") for key in unwanted)
    if name in ("engine", *_OUR_CONTAINERS):
        yield from _inside(item)


def _inside(item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for field in ("env", "volumeMounts"):
        entries = item.get(field, [])
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            yield f".{field}", "must be a list of objects"
            return
    for i, entry in enumerate(item.get("env", [])):
        name = str(entry.get("name", ""))
        if name.startswith("RH_") or name in RESERVED_ENV:
            yield f".env[{i}].name", f"{name} is set by Roundhouse; use another name"
    for i, entry in enumerate(item.get("volumeMounts", [])):
        path = str(entry.get("mountPath", "")).rstrip("/")
        if any(path == ours or path.startswith(f"{ours}/") or ours.startswith(f"{path}/") for ours in _OUR_PATHS):
            yield f".volumeMounts[{i}].mountPath", f"{path or '/'} is Roundhouse's; use another path"
