"""Names of every Redis key and channel. ``docs/contracts.md`` §2 lists them; ``tests/contracts`` fixes them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Installation:
    """One Roundhouse installation: ``<helm namespace>/<release>``, or ``local`` for ``roundhouse up``."""

    name: str

    @property
    def catalogue(self) -> str:
        return f"rh:{self.name}:catalogue"

    @property
    def catalogue_channel(self) -> str:
        return f"rh:{self.name}:catalogue:changed"

    @property
    def term(self) -> str:
        return f"rh:{self.name}:term"

    def gateway(self, incarnation: int) -> str:
        return f"rh:{self.name}:gateways:{incarnation:016x}"

    @property
    def gateways_pattern(self) -> str:
        return f"rh:{self.name}:gateways:*"

    def service(self, namespace: str, name: str) -> "ServiceKeys":
        return ServiceKeys(self.name, namespace, name)


@dataclass(frozen=True, slots=True)
class ServiceKeys:
    """Keys of one InferenceService; the braces keep them on one cluster slot."""

    installation: str
    namespace: str
    name: str

    @property
    def prefix(self) -> str:
        return f"rh:{self.installation}:{{{self.namespace}/{self.name}}}"

    def lease(self, replica_uid: str) -> str:
        return f"{self.prefix}:lease:{replica_uid}"

    @property
    def lease_channel(self) -> str:
        return f"{self.prefix}:leases"

    def profile(self, digest: str) -> str:
        return f"{self.prefix}:profile:{digest}"

    def token_table(self, digest: str) -> str:
        return f"{self.prefix}:tokens:{digest}"

    @property
    def kv_log(self) -> str:
        return f"{self.prefix}:kvlog"

    def kv_snapshot(self, pod_uid: str) -> str:
        return f"{self.prefix}:kvsnap:{pod_uid}"

    @property
    def books_channel(self) -> str:
        return f"{self.prefix}:books"

    def demand(self, incarnation: int) -> str:
        return f"{self.prefix}:demand:{incarnation:016x}"

    @property
    def wake_channel(self) -> str:
        return f"{self.prefix}:wake"
