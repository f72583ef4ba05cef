"""Reasons of conditions. An interface: programs test these words, so they never change their meaning."""

from enum import StrEnum


class Reason(StrEnum):
    """Of a replica that is on its way or failing, of a service, or of both."""

    # A replica on its way.
    STARTING = "Starting"
    WAITING_FOR_GPU = "WaitingForGPU"
    UNSCHEDULABLE = "Unschedulable"
    VOLUME_PENDING = "VolumePending"
    PULLING_IMAGE = "PullingImage"
    FETCHING_MODEL = "FetchingModel"
    LOADING_MODEL = "LoadingModel"
    READY = "Ready"
    DRAINING = "Draining"
    TERMINATING = "Terminating"

    # A replica that does not get there by itself.
    MODEL_FETCH_FAILED = "ModelFetchFailed"
    ENGINE_CRASH_LOOP = "EngineCrashLoop"
    ENGINE_HUNG = "EngineHung"
    AGENT_CRASH_LOOP = "AgentCrashLoop"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    SECRET_NOT_FOUND = "SecretNotFound"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    QUOTA_EXCEEDED = "QuotaExceeded"
    CREATE_REFUSED = "CreateRefused"
    POD_FAILED = "PodFailed"
    POD_GONE = "PodGone"
    NODE_LOST = "NodeLost"

    # A service.
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    SERVED_NAME_CONFLICT = "ServedNameConflict"
    COMPLETE = "Complete"
    ROLLING_OUT = "RollingOut"
    ROLLOUT_TIMED_OUT = "RolloutTimedOut"
    SCALED_TO_ZERO = "ScaledToZero"
    SERVING = "Serving"
    NOT_ENOUGH_REPLICAS = "NotEnoughReplicas"
    SCALING = "Scaling"
    AT_MAXIMUM = "AtMaximum"
    LOAD_UNKNOWN = "LoadUnknown"
    FIXED_REPLICAS = "FixedReplicas"
    INSTALLATION_CONFLICT = "InstallationConflict"
    FIELD_CONFLICT = "FieldConflict"
    FRESH = "Fresh"
    AGENT_OUTDATED = "AgentOutdated"
    REDIS_UNAVAILABLE = "RedisUnavailable"


STUCK = (
    Reason.MODEL_FETCH_FAILED,
    Reason.ENGINE_CRASH_LOOP,
    Reason.IMAGE_PULL_FAILED,
    Reason.SECRET_NOT_FOUND,
    Reason.CONTAINER_CONFIG_ERROR,
    Reason.AGENT_CRASH_LOOP,
    Reason.QUOTA_EXCEEDED,
    Reason.CREATE_REFUSED,
    Reason.POD_FAILED,
)
"""Without a person nothing will change: Progressing is False. Most telling first."""

PENDING = (
    Reason.ENGINE_HUNG,
    Reason.POD_GONE,
    Reason.NODE_LOST,
    Reason.WAITING_FOR_GPU,
    Reason.VOLUME_PENDING,
    Reason.UNSCHEDULABLE,
    Reason.PULLING_IMAGE,
    Reason.FETCHING_MODEL,
    Reason.LOADING_MODEL,
    Reason.STARTING,
    Reason.DRAINING,
    Reason.TERMINATING,
)
"""Things that pass. The one that explains most of the wait first."""

RANK = {reason: place for place, reason in enumerate((*STUCK, *PENDING))}
