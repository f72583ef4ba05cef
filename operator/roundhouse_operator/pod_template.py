"""The pod of a replica: agent (native sidecar), fetch (init container) and engine. Pure.

Containers start in that order. The agent outlives the engine, so it can drain it; ``preStop`` of the engine asks it to,
whoever deletes the pod. The termination grace holds everything that may happen after a deletion: the drain, the
continuation of streams elsewhere, and the engine's own shutdown.
"""

from typing import Any

from roundhouse_engines.launch import AGENT_PORT, ENGINE_PORT, LaunchPlan

from roundhouse_operator.api.service import InferenceService, ModelCache
from roundhouse_operator.cluster import Obj
from roundhouse_operator.effective import Effective, engine_image
from roundhouse_operator.names import MODELS_DIR, REDIS_SECRET, RUN_DIR, node_path, service_labels
from roundhouse_operator.settings import Settings

USER_ID = 65532
LIVENESS_GRACE_S = 10

# Atomic, so that the agent never reads half a nonce; then the engine takes this process over.
_START = (
    'umask 022; od -An -N8 -tx1 /dev/urandom | tr -d " \\n" > "$RUN_DIR/engine-start.new" && '
    'mv "$RUN_DIR/engine-start.new" "$RUN_DIR/engine-start" && exec "$@"'
)


class PodTemplate:
    """Renders one pod spec; the methods are its parts."""

    def __init__(
        self, service: InferenceService, wanted: Effective, launch: LaunchPlan, replica: str, settings: Settings
    ) -> None:
        self._service = service
        self._wanted = wanted
        self._launch = launch
        self._replica = replica
        self._settings = settings
        self._model_path = wanted.model_path if launch.needs_model else ""

    def spec(self) -> Obj:
        settings, wanted = self._settings, self._wanted
        grace = wanted.drain_s + settings.continuation_s + self._launch.shutdown_seconds + settings.kill_margin_s
        init = [self._agent()]
        if self._model_path:
            init.append(self._fetch())
        spec: Obj = {
            "initContainers": init,
            "containers": [self._engine()],
            "volumes": self._volumes(),
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": grace,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": self._tolerations(),
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": service_labels(self._service.metadata.name)},
                }
            ],
        }
        if wanted.gpu_type:
            spec["affinity"] = self._affinity()
        return spec

    def _agent(self) -> Obj:
        settings, meta = self._settings, self._service.metadata
        env = {
            "RH_INSTALLATION": settings.installation,
            "RH_NAMESPACE": meta.namespace,
            "RH_SERVICE": meta.name,
            "RH_REPLICA": self._replica,
            "RH_ENGINE": self._wanted.engine,
            "RH_MODEL_PATH": self._model_path,
            "RH_ENGINE_MODEL": meta.name,
            "RH_GPU_TYPE": self._wanted.gpu_type,
            "RH_DRAIN_SECONDS": str(self._wanted.drain_s),
            "RH_HUNG_SECONDS": str(settings.hung_s),
            "RH_REDIS_URL": settings.redis_url,
        }
        secrets = []
        if settings.agents_log_in:
            secrets = [
                _from_secret("RH_REDIS_USERNAME", REDIS_SECRET, "username"),
                _from_secret("RH_REDIS_PASSWORD", REDIS_SECRET, "password"),
            ]
        live = {"httpGet": {"path": "/live", "port": AGENT_PORT}}
        return {
            **self._container("agent", settings.image("agent")),
            "args": ["serve"],
            "restartPolicy": "Always",
            "env": [*_pod_env(), *_plain_env(env), *secrets],
            "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
            "startupProbe": {**live, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 120},
            "livenessProbe": {**live, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
            "readinessProbe": {
                "httpGet": {"path": "/ready", "port": AGENT_PORT},
                "periodSeconds": 1,
                "timeoutSeconds": 1,
                "failureThreshold": 1,
            },
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
            "volumeMounts": [*_own_mounts(), *self._model_mounts(read_only=True)],
        }

    def _fetch(self) -> Obj:
        meta, spec = self._service.metadata, self._wanted.spec
        env = {
            "RH_NAMESPACE": meta.namespace,
            "RH_SERVICE": meta.name,
            "RH_ENGINE": self._wanted.engine,
            "RH_MODEL": spec.model or "",
            "RH_MODEL_CACHE": MODELS_DIR,
            "RH_MODEL_PATH": self._model_path,
        }
        token = [_from_secret("HF_TOKEN", spec.model_secret.name, "token")] if spec.model_secret else []
        mounts = [*_own_mounts(), *self._model_mounts(read_only=False)]
        source = node_path(spec.model or "")
        if source:
            mounts.append({"name": "source", "mountPath": source, "readOnly": True})
        container: Obj = {
            **self._container("fetch", self._settings.image("agent")),
            "args": ["fetch"],
            "env": [*_pod_env(), *_plain_env(env), *token],
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
            "volumeMounts": mounts,
        }
        if self._host_cache():
            # A folder that the kubelet makes is root's; without capabilities root may write there and nowhere else.
            container["securityContext"] = {**container["securityContext"], "runAsUser": 0, "runAsNonRoot": False}
        return container

    def _engine(self) -> Obj:
        health = {"httpGet": {"path": self._launch.health_path, "port": ENGINE_PORT}}
        env = {"HOME": "/tmp", "USER": "roundhouse", **self._launch.env}
        return {
            **self._container("engine", engine_image(self._wanted, self._settings)),
            "command": ["/bin/sh", "-c", _START, "engine", *self._launch.argv],
            "env": [*_pod_env(), *_plain_env(env)],
            "ports": [{"name": "http", "containerPort": ENGINE_PORT}],
            "startupProbe": {
                **health,
                "periodSeconds": 1,
                "timeoutSeconds": 5,
                "failureThreshold": self._settings.load_deadline_s,
            },
            "livenessProbe": {
                **health,
                "periodSeconds": 10,
                "timeoutSeconds": 5,
                "failureThreshold": 6,
                "terminationGracePeriodSeconds": LIVENESS_GRACE_S,
            },
            "lifecycle": {"preStop": {"httpGet": {"path": "/drain?wait=1", "port": AGENT_PORT}}},
            "resources": self._resources(),
            "volumeMounts": [
                *_own_mounts(),
                *self._model_mounts(read_only=True),
                {"name": "shm", "mountPath": "/dev/shm"},
            ],
        }

    def _container(self, name: str, image: str) -> Obj:
        return {
            "name": name,
            "image": image,
            "imagePullPolicy": self._settings.image_pull_policy,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }

    def _resources(self) -> Obj:
        given = self._wanted.spec.resources
        requests: dict[str, Any] = {}
        limits: dict[str, Any] = {}
        if given and given.cpu is not None:
            requests["cpu"] = str(given.cpu)
        if given and given.memory is not None:
            requests["memory"] = limits["memory"] = str(given.memory)
        if self._wanted.gpus:
            limits[self._settings.gpu_resource] = str(self._wanted.gpus)
        return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}

    def _volumes(self) -> list[Obj]:
        volumes: list[Obj] = [
            {"name": "run", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": self._settings.shm_size}},
        ]
        if not self._model_path:
            return volumes
        host, cache = self._host_cache(), self._wanted.spec.model_cache
        if cache is not None and cache.persistent_volume_claim is not None:
            claim = {"claimName": cache.persistent_volume_claim.claim_name}
            volumes.append({"name": "models", "persistentVolumeClaim": claim})
        elif host:
            volumes.append({"name": "models", "hostPath": {"path": host, "type": "DirectoryOrCreate"}})
        else:
            volumes.append({"name": "models", "emptyDir": _empty_dir(cache)})
        source = node_path(self._wanted.spec.model or "")
        if source:
            volumes.append({"name": "source", "hostPath": {"path": source}})
        return volumes

    def _model_mounts(self, *, read_only: bool) -> list[Obj]:
        if not self._model_path:
            return []
        mount: Obj = {"name": "models", "mountPath": MODELS_DIR}
        return [{**mount, "readOnly": True}] if read_only else [mount]

    def _host_cache(self) -> str:
        cache = self._wanted.spec.model_cache
        if cache is None:
            return self._settings.default_cache_path
        return cache.host_path.path if cache.host_path else ""

    def _tolerations(self) -> list[Obj]:
        gone: list[Obj] = [
            {
                "key": f"node.kubernetes.io/{state}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 30,
            }
            for state in ("not-ready", "unreachable")
        ]
        if not self._wanted.gpus:
            return gone
        return [*gone, {"key": self._settings.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}]

    def _affinity(self) -> Obj:
        term = {
            "matchExpressions": [
                {"key": self._settings.gpu_type_label, "operator": "In", "values": [self._wanted.gpu_type]}
            ]
        }
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _empty_dir(cache: ModelCache | None) -> Obj:
    limit = cache.empty_dir.size_limit if cache and cache.empty_dir else None
    return {} if limit is None else {"sizeLimit": str(limit)}


def _pod_env() -> list[Obj]:
    """First, because later values may refer to these."""
    return [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "RUN_DIR", "value": RUN_DIR},
    ]


def _plain_env(values: dict[str, str]) -> list[Obj]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _from_secret(name: str, secret: str, key: str) -> Obj:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _own_mounts() -> list[Obj]:
    return [{"name": "run", "mountPath": RUN_DIR}, {"name": "tmp", "mountPath": "/tmp"}]
