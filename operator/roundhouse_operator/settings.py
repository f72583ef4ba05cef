"""Settings of the operator, parsed once in ``main()`` (or by the supervisor of the local run) and passed down."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roundhouse_engines.launch import load_launch


@dataclass(frozen=True, slots=True)
class Settings:
    """What one installation of the operator works with."""

    installation: str
    """Name space in Redis: ``<helm namespace>/<release>``, or ``local``."""
    redis_url: str
    """Redis as the pods reach it, without credentials."""
    redis_username: str = ""
    """User that agents log in with; empty: the default user."""
    redis_password: str = field(default="", repr=False)
    """Its password; empty: Redis has none and the pods get no Secret."""
    redis_acl: bool = False
    """Give the agents of each namespace a Redis user of their own, limited to that namespace's keys."""
    namespaces: tuple[str, ...] = ()
    """Namespaces that are watched; none: all of them."""
    gateway_url: str = ""
    """Base URL of the gateways for clients, shown in ``status.url``; empty: not shown."""

    images: Mapping[str, str] = field(default_factory=dict)
    """Image by ``agent`` or engine kind, where it differs from the engine kind's own."""
    image_pull_policy: str = "IfNotPresent"
    """Pull policy of every container."""
    default_engine: str = "torch"
    """Engine kind of services that name none."""
    default_gpus: int = 1
    """GPUs of services that give no number; 0 in the local run."""
    default_cache_path: str = ""
    """Folder of the node for models of services that give no ``modelCache``; empty: a volume of the pod."""
    gpu_resource: str = "nvidia.com/gpu"
    """Extended resource that a GPU is asked for by."""
    gpu_type_label: str = "nvidia.com/gpu.product"
    """Node label that ``resources.gpuType`` is compared with."""
    shm_size: str = "8Gi"
    """Limit of /dev/shm, which engines use between their processes; it counts as memory only when used."""

    network_policies: bool = False
    """Keep a NetworkPolicy per service: engines reachable by gateways, operator and each other only."""
    metrics_from: tuple[Mapping[str, Any], ...] = ()
    """NetworkPolicyPeers that may scrape engines and agents as well."""

    drain_s: int = 120
    """Seconds that requests in flight get when ``drain.timeoutSeconds`` is not given."""
    continuation_s: int = 15
    """Seconds after a drain's deadline in which gateways continue streams elsewhere."""
    kill_margin_s: int = 10
    """Seconds of termination grace beyond everything that has its own limit."""
    overdue_s: int = 30
    """Seconds beyond its grace after which a terminating pod no longer counts as running."""
    load_deadline_s: int = 3600
    """Seconds that an engine may take from its start until it answers; the kubelet restarts it then."""
    progress_deadline_s: int = 3600
    """Seconds without progress until RolloutTimedOut when ``rollout.progressDeadlineSeconds`` is not given."""

    max_restarts: int = 5
    """Restarts of an engine in place within the window that make it a crash loop: it is then replaced."""
    restart_window_s: int = 900
    """The window; with the kubelet's back-off (10 s doubling up to 5 min) five restarts take 5 minutes."""
    replace_backoff_s: float = 10.0
    """Wait before replacing a replica that never became ready; doubles with each further one."""
    replace_backoff_max_s: float = 600.0
    """The longest of these waits."""
    hung_share: float = 0.3
    """Above this share of hung replicas (and more than one) nothing is restarted: the cause is elsewhere."""
    hung_s: int = 30
    """Seconds with requests running and neither a token nor a KV event that make an engine hung; agents judge it."""
    hung_grace_s: int = 5
    """Termination grace of a hung replica."""

    drain_poll_s: float = 1.0
    """Period of asking a draining replica's agent."""
    retry_s: float = 10.0
    """Period of looking again at what no event announces: a missing Secret, a refused pod."""
    redis_patience_s: float = 5.0
    """Seconds without an answer from Redis until LiveData says so."""

    scaling_poll_s: float = 2.0
    """Period of looking at the loads of services that scale by themselves; it costs no request."""

    workers: int = 16
    """Services reconciled at the same time."""
    resync_s: float = 300.0
    """Period of listing everything anew, which finds what no watch reported."""
    gap_pause_s: float = 1.0
    """Wait from the first sign that a watch was broken until everything is listed anew."""
    health_poll_s: float = 1.0
    """Period of looking whether Redis answers and the watches report."""
    silence_s: float = 60.0
    """Seconds within which the watches must report what the operator itself wrote; else they are dead."""
    request_timeout_s: float = 30.0
    """Deadline of one request to the API server."""
    agent_timeout_s: float = 2.0
    """Deadline of one request to an agent."""

    @property
    def agents_log_in(self) -> bool:
        """Pods get credentials of Redis."""
        return self.redis_acl or bool(self.redis_password)

    def image(self, part: str) -> str:
        """Image of ``agent`` or of an engine kind."""
        if part in self.images:
            return self.images[part]
        return "roundhouse-agent" if part == "agent" else load_launch(part).image
